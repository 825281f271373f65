// Warp collectives: each lane publishes pointers to its operands and waits; the last lane of the mask to arrive executes
// the operation for all of them. One counter word per warp keeps an arrival O(1).
#include <cstdio>

#include "state.h"

namespace simt {

namespace {

struct Warp {
    unsigned pending;  // lanes waiting in a collective
    unsigned exited;
    unsigned mask;     // of the collective being gathered
    const WarpOp* op;
    Where where;
    bool mixed;        // lanes wait in different collectives: take the slow path
};
Warp warps[kMaxWarps];

bool compatible(const Fiber& a, const Fiber& b) {
    return a.op == b.op && a.mask == b.mask &&
           (!a.op->aligned || (a.where.line == b.where.line && a.where.file == b.where.file));
}

[[noreturn]] void report_exited_lane(const Fiber& fiber, int lane) {
    report(kWarpDivergence, site_of(fiber.where), "%s with mask %08x names lane %d of warp %d, which has exited",
           fiber.op->name, fiber.mask, lane, fiber.warp);
    abandon_block();
}

[[noreturn]] void report_mismatch(const Fiber& fiber, const Fiber& other) {
    FaultRecord* fault =
        report(kWarpDivergence, site_of(fiber.where),
               "warp %d: lane %d is in %s (line %d, mask %08x), lane %d in %s (line %d, mask %08x)", fiber.warp,
               fiber.lane, fiber.op->name, fiber.where.line, fiber.mask, other.lane, other.op->name, other.where.line,
               other.mask);
    fault->other = site_of(other.where);
    abandon_block();
}

// Every lane of the mask looked at one by one; reports lanes that can never join.
bool all_arrived(const Fiber& fiber) {
    const int first = fiber.warp * 32;
    bool all = true;
    for (int lane = 0; lane < 32; lane++) {
        if (!(fiber.mask >> lane & 1)) continue;
        const Fiber& other = fibers[first + lane];
        if (other.state == kDone) report_exited_lane(fiber, lane);
        if (other.state != kAtWarpOp) {
            all = false;
        } else if (!compatible(fiber, other)) {
            report_mismatch(fiber, other);
        }
    }
    return all;
}

bool complete(Warp& warp, const Fiber& fiber) {
    const unsigned lane = 1u << fiber.lane;
    if (!warp.pending) {
        warp = Warp{lane, warp.exited, fiber.mask, fiber.op, fiber.where, false};
    } else {
        const bool other_line = warp.where.line != fiber.where.line || warp.where.file != fiber.where.file;
        if (warp.mask != fiber.mask || warp.op != fiber.op || (fiber.op->aligned && other_line)) warp.mixed = true;
        warp.pending |= lane;
    }
    if (warp.mixed || (warp.exited & fiber.mask)) return all_arrived(fiber);
    return warp.pending == warp.mask;
}

void execute(Warp& warp, const Fiber& fiber) {
    const int first = fiber.warp * 32;
    const unsigned mask = fiber.mask;
    const void* in[32];
    void* out[32];
    for (int lane = 0; lane < 32; lane++) {
        const bool takes_part = mask >> lane & 1;
        in[lane] = takes_part ? fibers[first + lane].in : nullptr;
        out[lane] = takes_part ? fibers[first + lane].out : nullptr;
    }
    warp.pending &= ~mask;
    fiber.op->execute(mask, in, out);
    if (launch->checks == kMemory && fiber.op->orders_memory) shadow_join_warp(fiber.warp, mask);
    for (unsigned rest = mask; rest; rest &= rest - 1) make_ready(first + __builtin_ctz(rest));
}

}  // namespace

void reset_warps() {
    for (Warp& warp : warps) warp = Warp{};
}

void exit_from_warp(const Fiber& fiber) {
    warps[fiber.warp].exited |= 1u << fiber.lane;
    const int first = fiber.warp * 32;
    for (unsigned rest = warps[fiber.warp].pending; rest; rest &= rest - 1) {
        const Fiber& waiting = fibers[first + __builtin_ctz(rest)];
        if (waiting.mask >> fiber.lane & 1) report_exited_lane(waiting, fiber.lane);
    }
}

void report_deadlock() {
    int at_barrier = 0, at_warp_op = 0;
    const Fiber *barrier = nullptr, *warp_op = nullptr;
    for (int i = 0; i < thread_count; i++) {
        if (fibers[i].state == kAtBarrier && !at_barrier++) barrier = &fibers[i];
        if (fibers[i].state == kAtWarpOp && !at_warp_op++) warp_op = &fibers[i];
    }
    char text[200];
    int length = std::snprintf(text, sizeof text, "no thread can run: %d exited", thread_count - alive_count);
    if (barrier)
        length += std::snprintf(text + length, sizeof text - static_cast<size_t>(length),
                                "; %d wait at barrier %d (thread %d, line %d)", at_barrier, barrier->barrier,
                                barrier->index, barrier->where.line);
    if (warp_op)
        std::snprintf(text + length, sizeof text - static_cast<size_t>(length), "; %d wait in %s (thread %d, line %d)",
                      at_warp_op, warp_op->op->name, warp_op->index, warp_op->where.line);
    const Fiber* shown = barrier ? barrier : warp_op;
    FaultRecord* fault = report(kDeadlock, site_of(shown->where), "%s", text);
    fault->thread = shown->thread;
    if (barrier && warp_op) fault->other = site_of(warp_op->where);
    abandon_block();
}

}  // namespace simt

SIMT_API void simt_warp(unsigned mask, const simt::WarpOp* op, const void* in, void* out, simt::Where where) {
    using namespace simt;
    Fiber& fiber = self();
    const int in_warp = thread_count - fiber.warp * 32;
    if (in_warp < 32) mask &= (1u << in_warp) - 1;  // lanes of a partial last warp do not exist
    fiber.mask = mask;
    fiber.op = op;
    fiber.in = in;
    fiber.out = out;
    fiber.where = where;
    if (!(mask >> fiber.lane & 1)) {
        report(kWarpDivergence, site_of(where), "lane %d calls %s with mask %08x, which does not name it", fiber.lane,
               op->name, mask);
        abandon_block();
    }
    fiber.state = kAtWarpOp;
    Warp& warp = warps[fiber.warp];
    if (complete(warp, fiber)) execute(warp, fiber);
    yield_fiber();
}
