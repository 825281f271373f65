// Shadow memory.
#include "state.h"

namespace simt {

void shadow_begin_launch() {}
void shadow_end_launch() {}
void shadow_begin_block() {}
void shadow_full_barrier() {}
void shadow_release_to_barrier(int) {}
void shadow_acquire_from_barrier(int, int) {}
void shadow_reset_barrier(int) {}
void shadow_join_warp(int, unsigned) {}
void shadow_access(const void*, size_t, int, Site) {}
void shadow_set_in_flight(const void*, size_t, bool) {}
void shadow_fence() {}

}  // namespace simt

SIMT_API void simt_fence() {}
SIMT_API void simt_note(const void*, size_t, int, simt::Where) {}
