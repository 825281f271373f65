// Block-wide barriers (id 0 through __syncthreads) and named barriers (bar.sync / bar.arrive with an id and a count).
#include "state.h"

namespace simt {

namespace {

struct Barrier {
    int arrived;    // threads that arrived in this round, waiting or not
    int expected;   // count given by the first arriver, 0 for "every thread of the block"
    int votes_or, votes_and, votes_count;
    bool whole_block;
};
Barrier barriers[kMaxBarriers];

int reduced(const Barrier& barrier, int reduction) {
    if (reduction == kOr) return barrier.votes_or;
    if (reduction == kAnd) return barrier.votes_and;
    return barrier.votes_count;
}

void check_same_line(int id) {
    const Fiber* first = nullptr;
    for (int i = 0; i < thread_count; i++) {
        const Fiber& fiber = fibers[i];
        if (fiber.state != kAtBarrier || fiber.barrier != id) continue;
        if (!first) first = &fiber;
        if (fiber.where.line == first->where.line) continue;
        FaultRecord* fault = report(kBarrierDivergence, site_of(first->where),
                                    "thread %d waits at the barrier of line %d while thread %d waits at line %d",
                                    first->index, first->where.line, fiber.index, fiber.where.line);
        fault->other = site_of(fiber.where);
        fault->thread = first->thread;
        abandon_block();
    }
}

void release(int id) {
    Barrier& barrier = barriers[id];
    if (barrier.whole_block) check_same_line(id);
    if (launch->checks == kMemory && barrier.whole_block) shadow_full_barrier();
    for (int i = 0; i < thread_count; i++) {
        Fiber& fiber = fibers[i];
        fiber.arrived &= ~(1u << id);
        if (fiber.state != kAtBarrier || fiber.barrier != id) continue;
        if (launch->checks == kMemory && !barrier.whole_block) shadow_acquire_from_barrier(id, i);
        fiber.barrier_result = reduced(barrier, fiber.barrier_result);
        make_ready(i);
    }
    if (launch->checks == kMemory && !barrier.whole_block) shadow_reset_barrier(id);
    barrier = Barrier{0, 0, 0, 1, 0, false};
}

// Counts the running thread in and returns whether the barrier is complete.
bool arrive(int id, int count, int predicate, Where where) {
    if (id < 0 || id >= kMaxBarriers) simt_trap("barrier id is not in 0..15", where);
    if (count % 32) simt_trap("the thread count of a named barrier is not a multiple of 32", where);
    Barrier& barrier = barriers[id];
    if (barrier.arrived == 0) {
        barrier.expected = count;
        barrier.whole_block = count == 0;  // a named barrier of all threads may have some that only arrive
    } else if (barrier.expected != count) {
        report(kBarrierDivergence, site_of(where), "barrier %d is used with %d and with %d threads in one round", id,
               barrier.expected, count);
        abandon_block();
    }
    if (self().arrived >> id & 1) {
        report(kBarrierDivergence, site_of(where), "thread %d arrives twice at barrier %d in one round", current, id);
        abandon_block();
    }
    self().arrived |= 1u << id;
    barrier.arrived++;
    barrier.votes_or |= predicate;
    barrier.votes_and &= predicate;
    barrier.votes_count += predicate;
    if (launch->checks == kMemory && !barrier.whole_block) shadow_release_to_barrier(id);
    return barrier.arrived >= (count ? count : alive_count);
}

void report_early_exit(Where where) {
    report(kBarrierDivergence, site_of(where), "barrier reached by %d of %d threads: %d exited without it", alive_count,
           thread_count, thread_count - alive_count);
    abandon_block();
}

}  // namespace

void reset_barriers() {
    for (Barrier& barrier : barriers) barrier = Barrier{0, 0, 0, 1, 0, false};
}

// A thread that returns can leave the others waiting for it.
void exit_from_barriers() {
    const Barrier& barrier = barriers[0];
    if (alive_count == 0 || barrier.arrived == 0 || barrier.expected != 0 || barrier.arrived < alive_count) return;
    for (int i = 0; i < thread_count; i++)
        if (fibers[i].state == kAtBarrier && fibers[i].barrier == 0) report_early_exit(fibers[i].where);
}

}  // namespace simt

SIMT_API int simt_barrier(int id, int count, int reduction, int predicate, simt::Where where) {
    using namespace simt;
    Fiber& fiber = self();
    fiber.state = kAtBarrier;
    fiber.barrier = id;
    fiber.barrier_result = reduction;
    fiber.where = where;
    if (arrive(id, count, predicate, where)) {
        if (count == 0 && alive_count < thread_count) report_early_exit(where);
        release(id);
    }
    yield_fiber();
    return fiber.barrier_result;
}

SIMT_API void simt_barrier_arrive(int id, int count, simt::Where where) {
    if (simt::arrive(id, count, 0, where)) simt::release(id);
}
