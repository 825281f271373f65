// Fibers: one per CUDA thread, switched by hand-written assembly (about 6 ns; ucontext costs 280 ns because of its two
// system calls). The scheduler is a ring of ready fibers read from one end, the other end, or at random.
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "state.h"

extern "C" {
simt::Index3 threadIdx, blockIdx, blockDim, gridDim;
unsigned simt_lane;
// Saves the callee-saved registers on the current stack, stores its pointer in *save, and continues on `load`.
void simt_switch(void** save, void* load);
}

#if defined(__x86_64__)
asm(R"(
.text
.globl simt_switch
.hidden simt_switch
.type simt_switch,@function
simt_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    popq %rcx
    jmpq *%rcx
.size simt_switch, .-simt_switch
)");
#elif defined(__aarch64__)
asm(R"(
.text
.globl simt_switch
.hidden simt_switch
.type simt_switch,%function
simt_switch:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
.size simt_switch, .-simt_switch
)");
#else
#error "the CPU backend knows x86-64 and aarch64 only"
#endif

namespace simt {

LaunchRecord* launch;
Fiber fibers[kMaxThreads];
int thread_count, alive_count, current;
uint32_t block_number;
Index3 block_index;

namespace {

constexpr size_t kPage = 4096;
constexpr size_t kStackBytes = 64 * 1024;
constexpr size_t kStackStride = kStackBytes + kPage;  // one guard page below each stack
constexpr size_t kPoisonedStack = 16 * 1024;          // the top part, where the kernel's frame is

char* stacks;
int stacks_ready;
void* launcher_stack;
int ready[2 * kMaxThreads];
unsigned ready_head, ready_tail;
uint64_t random_state;

void map_stacks(int count) {
    if (!stacks) {
        void* map = mmap(nullptr, kStackStride * kMaxThreads, PROT_NONE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (map == MAP_FAILED) {
            std::perror("cpu_backend: mmap of the fiber stacks");
            std::abort();
        }
        stacks = static_cast<char*>(map);
    }
    for (; stacks_ready < count; stacks_ready++)
        mprotect(stacks + kStackStride * stacks_ready + kPage, kStackBytes, PROT_READ | PROT_WRITE);
}

void fiber_main() {
    launch->entry(launch->arguments);
    finish_fiber();
}

void* first_frame(int index) {
    // Staggered tops: equal offsets in every stack would fall into the same cache sets.
    char* top = stacks + kStackStride * (index + 1) - (static_cast<size_t>(index) * 320 % 4096) - 64;
    auto* frame = reinterpret_cast<uintptr_t*>(reinterpret_cast<uintptr_t>(top) & ~uintptr_t{15});
    if (launch->checks == kLocals) {
        auto* end = reinterpret_cast<uint16_t*>(frame);
        std::fill(end - kPoisonedStack / sizeof *end, end, kStackPoison);
    }
#if defined(__x86_64__)
    *--frame = 0;  // return address of fiber_main, never used
    *--frame = reinterpret_cast<uintptr_t>(fiber_main);
    for (int i = 0; i < 6; i++) *--frame = 0;
#else
    frame -= 20;
    for (int i = 0; i < 20; i++) frame[i] = 0;
    frame[11] = reinterpret_cast<uintptr_t>(fiber_main);  // x30
#endif
    return frame;
}

inline void enter(int fiber) {
    current = fiber;
    threadIdx = fibers[fiber].thread;
    simt_lane = static_cast<unsigned>(fibers[fiber].lane);
}

inline int next_ready() {
    constexpr unsigned wrap = 2 * kMaxThreads - 1;
    if (launch->policy == kReversed) return ready[--ready_tail & wrap];
    if (launch->policy == kRandom) {
        const unsigned waiting = ready_tail - ready_head;
        const unsigned chosen = ready_head + static_cast<unsigned>((random_bits() >> 32) * waiting >> 32);
        std::swap(ready[chosen & wrap], ready[ready_head & wrap]);
    }
    return ready[ready_head++ & wrap];
}

}  // namespace

uint64_t random_bits() {  // xorshift64
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

bool address_in_stacks(uintptr_t address) {
    return address - reinterpret_cast<uintptr_t>(stacks) < kStackStride * kMaxThreads;
}

void seed_scheduler(uint64_t seed) { random_state = seed * 0x9e3779b97f4a7c15u + 0x2545f4914f6cdd1du; }

void reset_fibers() {
    thread_count = static_cast<int>(blockDim.x * blockDim.y * blockDim.z);
    alive_count = thread_count;
    map_stacks(thread_count);
    ready_head = ready_tail = 0;
    for (int i = 0; i < thread_count; i++) {
        const unsigned n = static_cast<unsigned>(i);
        Fiber& fiber = fibers[i];
        fiber = Fiber{};
        fiber.index = i;
        fiber.lane = i % 32;
        fiber.warp = i / 32;
        fiber.thread = {n % blockDim.x, n / blockDim.x % blockDim.y, n / (blockDim.x * blockDim.y)};
        fiber.stack_pointer = first_frame(i);
        make_ready(i);
    }
}

void make_ready(int fiber) {
    fibers[fiber].state = kReady;
    ready[ready_tail++ & (2 * kMaxThreads - 1)] = fiber;
}

void run_fibers() {
    const int first = next_ready();
    enter(first);
    simt_switch(&launcher_stack, fibers[first].stack_pointer);
}

void yield_fiber() {
    if (ready_head == ready_tail) report_deadlock();
    const int from = current, to = next_ready();
    if (to == from) return;
    enter(to);
    simt_switch(&fibers[from].stack_pointer, fibers[to].stack_pointer);
}

void abandon_block() {
    void* dropped;
    simt_switch(&dropped, launcher_stack);
    __builtin_unreachable();
}

void finish_fiber() {
    Fiber& fiber = self();
    check_copies_at_exit();
    fiber.state = kDone;
    alive_count--;
    exit_from_warp(fiber);
    exit_from_barriers();
    if (alive_count == 0) abandon_block();
    yield_fiber();
    __builtin_unreachable();
}

}  // namespace simt
