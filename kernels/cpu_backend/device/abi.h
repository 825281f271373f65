// The boundary between a kernel's translation unit and the runtime: plain types and C functions, no CUDA headers.
// Both sides include this file; nothing else is shared between them.
#pragma once
#include <cstddef>
#include <cstdint>

#define SIMT_API extern "C" __attribute__((visibility("default")))

namespace simt {

// Source position of a device call, captured at the caller through default arguments.
struct Where {
    const char* file;
    int line;
};
constexpr Where here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { return {file, line}; }

enum Access : int { kRead = 1, kWrite = 2, kAtomic = 4 };
enum BarrierReduction : int { kNone = 0, kOr = 1, kAnd = 2, kCount = 3 };
enum MmaFormat : int { kHalf = 0, kBfloat16 = 1, kTf32 = 2 };

// A warp-wide operation: the last lane to arrive executes it for every lane of the mask. `in` and `out` hold one
// pointer per lane into that lane's own stack (null for lanes outside of the mask).
struct WarpOp {
    const char* name;
    void (*execute)(unsigned mask, const void* const* in, void* const* out);
    bool aligned;        // every lane must arrive from the same source line (.aligned in PTX)
    bool orders_memory;  // only __syncwarp orders memory; shuffles, votes, ldmatrix and mma do not
};

// Operands of one lane of mma.m16n8k16 (a: 4 registers, b: 2) or mma.m16n8k8 tf32 (the same counts).
struct MmaOperands {
    float c[4];
    unsigned a[4], b[2];
};

}  // namespace simt

SIMT_API int simt_barrier(int id, int count, int reduction, int predicate, simt::Where where);
SIMT_API void simt_barrier_arrive(int id, int count, simt::Where where);
SIMT_API void simt_warp(unsigned mask, const simt::WarpOp* op, const void* in, void* out, simt::Where where);
SIMT_API void simt_fence();
SIMT_API void simt_note(const void* address, size_t bytes, int access, simt::Where where);
SIMT_API void simt_copy_async(unsigned shared_address, const void* source, int bytes, int source_bytes,
                              simt::Where where);
SIMT_API void simt_copy_commit();
SIMT_API void simt_copy_wait(int groups_left);
SIMT_API void simt_check_shared_row(unsigned shared_address, simt::Where where);
SIMT_API void simt_ldmatrix(const void* const* in, void* const* out, int matrices, int transposed);
SIMT_API void simt_mma(const void* const* in, void* const* out, int format);
SIMT_API float simt_exp2_approx(float x);
SIMT_API __attribute__((noreturn)) void simt_trap(const char* message, simt::Where where);
