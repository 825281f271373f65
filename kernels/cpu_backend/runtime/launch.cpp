// The launch loop: blocks one after another, in the order that the schedule asks for.
#include <algorithm>
#include <numeric>
#include <vector>

#include "signals.h"
#include "state.h"

namespace simt {

namespace {

std::vector<uint32_t> block_order(uint32_t count) {
    std::vector<uint32_t> order(count);
    std::iota(order.begin(), order.end(), 0u);
    if (launch->policy == kReversed) std::reverse(order.begin(), order.end());
    if (launch->policy == kRandom)
        for (uint32_t i = count; i > 1; i--) std::swap(order[i - 1], order[random_bits() % i]);
    return order;
}

// Returns whether the launch may go on to the next block.
bool run_block(uint32_t number) {
    block_number = number;
    const Index3& grid = launch->grid;
    block_index = {number % grid.x, number / grid.x % grid.y, number / (grid.x * grid.y)};
    blockIdx = block_index;
    reset_barriers();
    reset_warps();
    reset_fibers();
    poison_shared();
    if (launch->checks == kMemory) shadow_begin_block();
    return run_guarded(run_fibers) && alive_count == 0;
}

}  // namespace

}  // namespace simt

SIMT_API void simt_launch(simt::LaunchRecord* record) {
    using namespace simt;
    launch = record;
    launch->fault_count = 0;
    launch->accesses = 0;
    last_access_pc = 0;
    kernel_image = image_of(reinterpret_cast<uintptr_t>(launch->entry));
    gridDim = launch->grid;
    blockDim = launch->block;
    seed_scheduler(launch->seed);
    set_up_shared(launch->shared_bytes);
    if (launch->checks == kMemory) shadow_begin_launch();
    const std::vector<uint32_t> order = block_order(launch->grid.x * launch->grid.y * launch->grid.z);
    install_handlers();
    for (uint32_t number : order)
        if (!run_block(number)) break;
    restore_handlers();
    if (launch->checks == kMemory) shadow_end_launch();
    launch = nullptr;
}

SIMT_API unsigned simt_record_sizes(int which) {
    using namespace simt;
    constexpr unsigned sizes[] = {sizeof(LaunchRecord), sizeof(FaultRecord), sizeof(BufferRecord), kMaxFaults,
                                  kSharedLimit, kMaxThreads};
    return sizes[which];
}
