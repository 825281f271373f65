// Happens-before. Inside a block: a phase counter for whole-block barriers, and per-thread clocks for __syncwarp and named
// barriers. Between blocks: only a fence followed by an atomic, picked up by an atomic on the same address.
//
// Clock values are warp stamps. A release by a thread (arrival at __syncwarp or a named barrier) publishes its warp's stamp
// and then raises it, so an access made at stamp s is ordered before thread x exactly when knowledge[x][thread] >= s, or
// when it belongs to an earlier phase of the same block. Stamps and phases only ever grow, so nothing is reset.
#include <algorithm>
#include <cstring>
#include <vector>

#include "shadow.h"

namespace simt {

uint32_t phase, block_first_phase;

namespace {

uint32_t knowledge[kMaxThreads][kMaxThreads];  // [x][t]: the stamp up to which x knows of t's accesses
uint32_t warp_stamp[kMaxWarps];
uint32_t warp_stamp_at_phase[kMaxWarps];
uint32_t barrier_clock[kMaxBarriers][kMaxThreads];
bool named_barrier_used;  // in this block; otherwise no thread knows of another warp beyond the phase

// Blocks by order of execution, and what the running one has acquired from the earlier ones.
std::vector<uint32_t> first_phases;
std::vector<bool> acquired;
constexpr size_t kMaxPublished = 64;  // addresses of atomics that carry an order between blocks
uintptr_t published[kMaxPublished];
std::vector<bool> published_blocks[kMaxPublished];
size_t published_count;
bool fenced;

void begin_phase() {
    phase++;
    std::memcpy(warp_stamp_at_phase, warp_stamp, sizeof warp_stamp);
}

}  // namespace

uint32_t stamp_now() { return warp_stamp[self().warp]; }
bool happened_before(int thread, uint32_t stamp) { return knowledge[current][thread] >= stamp; }

// Whether anything that warp released in this phase has reached the running thread.
bool heard_from_warp(unsigned warp) {
    for (unsigned lane = 0; lane < 32; lane++)
        if (knowledge[current][warp * 32 + lane] >= warp_stamp_at_phase[warp]) return true;
    return false;
}

int block_of_phase(uint32_t earlier) {
    const auto after = std::upper_bound(first_phases.begin(), first_phases.end(), earlier);
    return static_cast<int>(after - first_phases.begin()) - 1;
}

bool heard_from_block_of(uint32_t earlier_phase) {
    const auto block = static_cast<size_t>(block_of_phase(earlier_phase));
    return block < acquired.size() && acquired[block];
}

void order_begin_launch() {
    if (warp_stamp[0] == 0) std::fill_n(warp_stamp, kMaxWarps, 1u);
    first_phases.clear();
    const size_t blocks = size_t{launch->grid.x} * launch->grid.y * launch->grid.z;
    first_phases.reserve(blocks);
    acquired.assign(blocks, false);
    published_count = 0;
    for (auto& item : published_blocks) item.assign(blocks, false);
}

void order_begin_block() {
    begin_phase();
    block_first_phase = phase;
    first_phases.push_back(phase);
    std::fill(acquired.begin(), acquired.end(), false);
    named_barrier_used = fenced = false;
}

void order_atomic(uintptr_t address) {
    const size_t index = static_cast<size_t>(std::find(published, published + published_count, address) - published);
    if (index == published_count) {
        if (!fenced || published_count == kMaxPublished) return;
        published[published_count++] = address;
    }
    std::vector<bool>& blocks = published_blocks[index];
    for (size_t block = 0; block < acquired.size(); block++) {
        acquired[block] = acquired[block] || blocks[block];
        if (fenced) blocks[block] = acquired[block];
    }
    if (fenced) blocks[first_phases.size() - 1] = true;
}

void shadow_fence() { fenced = true; }

void shadow_full_barrier() { begin_phase(); }

void shadow_join_warp(int warp, unsigned mask) {
    const int first = named_barrier_used ? 0 : warp * 32;
    const int last = named_barrier_used ? thread_count : warp * 32 + 32;
    static uint32_t joined[kMaxThreads];
    std::fill(joined + first, joined + last, 0u);
    for (unsigned rest = mask; rest; rest &= rest - 1) {
        const uint32_t* known = knowledge[warp * 32 + __builtin_ctz(rest)];
        for (int thread = first; thread < last; thread++) joined[thread] = std::max(joined[thread], known[thread]);
    }
    for (unsigned rest = mask; rest; rest &= rest - 1) joined[warp * 32 + __builtin_ctz(rest)] = warp_stamp[warp];
    for (unsigned rest = mask; rest; rest &= rest - 1)
        std::copy(joined + first, joined + last, knowledge[warp * 32 + __builtin_ctz(rest)] + first);
    warp_stamp[warp]++;
}

void shadow_release_to_barrier(int barrier) {
    named_barrier_used = true;
    uint32_t* clock = barrier_clock[barrier];
    for (int thread = 0; thread < thread_count; thread++)
        clock[thread] = std::max(clock[thread], knowledge[current][thread]);
    clock[current] = warp_stamp[self().warp]++;
}

void shadow_acquire_from_barrier(int barrier, int fiber) {
    const uint32_t* clock = barrier_clock[barrier];
    for (int thread = 0; thread < thread_count; thread++)
        knowledge[fiber][thread] = std::max(knowledge[fiber][thread], clock[thread]);
}

void shadow_reset_barrier(int barrier) { std::memset(barrier_clock[barrier], 0, sizeof barrier_clock[barrier]); }

}  // namespace simt

SIMT_API void simt_fence() {
    if (simt::launch->checks == simt::kMemory) simt::shadow_fence();
}
