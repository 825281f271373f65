// What the parts of the runtime share: one launch at a time, one block at a time, one fiber at a time. Nothing here is
// allocated while a kernel runs, so a block can be abandoned by a long jump at any point.
#pragma once

#include <cstdint>

#include "../device/abi.h"

namespace simt {

constexpr int kMaxThreads = 1024;
constexpr int kMaxWarps = kMaxThreads / 32;
constexpr int kMaxBarriers = 16;
constexpr int kMaxCopies = 512;  // cp.async operations that one thread may have in flight
constexpr int kMaxFaults = 32;
constexpr size_t kSharedLimit = 227 * 1024;  // the most that a block may ask for on sm_90

struct Index3 {
    unsigned x, y, z;
};

enum FaultKind : int {
    kRace,
    kOutOfBounds,
    kUninitialised,
    kReadOnlyWrite,
    kInFlightCopy,
    kMisaligned,
    kBarrierDivergence,
    kWarpDivergence,
    kDeadlock,
    kTimeout,
    kArithmetic,
    kTrap,
};

// A source position: either file and line from a device call, or an instruction address that the loader resolves.
struct Site {
    const char* file;
    int line;
    uintptr_t pc;
};

struct FaultRecord {
    int kind;
    int buffer;  // index into the launch's buffers, -1 shared memory, -2 none
    long offset;
    Index3 block, thread;
    Site site, other;  // `other`: the earlier access of a race
    char message[256];
};

struct BufferRecord {
    unsigned char* base;
    size_t bytes;
    int writable, initialised;
};

// What is checked: nothing; every access to shared and global memory; or reads of local variables. The kernel is compiled
// with a different instrumentation for each.
enum Checks : int { kNothing, kMemory, kLocals };
enum Policy : int { kFifo, kReversed, kRandom };
enum MmaModel : int { kIdeal, kAmpere, kHopper };

struct LaunchRecord {
    void (*entry)(void**);
    void** arguments;
    Index3 grid, block;
    unsigned shared_bytes;
    int policy, mma, checks, buffer_count;
    uint64_t seed;
    double time_limit_s;  // of processor time, for the whole launch
    const BufferRecord* buffers;
    FaultRecord* faults;  // room for kMaxFaults
    int fault_count;
    uint64_t accesses;  // checked memory accesses, for statistics
};

enum FiberState : uint8_t { kReady, kAtBarrier, kAtWarpOp, kDone };

struct Copy {
    unsigned char* destination;
    const unsigned char* source;
    int bytes, source_bytes;
    unsigned group;
    Site site;
};

struct Fiber {
    void* stack_pointer;
    Index3 thread;
    int index, lane, warp;
    FiberState state;
    Where where;
    // barrier
    int barrier, barrier_result;
    unsigned arrived;  // bit i: has arrived at barrier i, which is not complete yet
    // warp operation
    unsigned mask;
    const WarpOp* op;
    const void* in;
    void* out;
    // asynchronous copies: a ring, and the number of the group being filled
    unsigned copy_head, copy_tail, copy_group;
};

extern LaunchRecord* launch;
extern Fiber fibers[kMaxThreads];
extern int thread_count, alive_count, current;
extern uint32_t block_number;
extern Index3 block_index;
inline Fiber& self() { return fibers[current]; }

// fibers.cpp
void seed_scheduler(uint64_t seed);
void reset_fibers();
void run_fibers();
void make_ready(int fiber);
void yield_fiber();                 // runs other fibers until this one is made ready again
[[noreturn]] void abandon_block();  // back to the launcher; the remaining fibers are dropped
[[noreturn]] void finish_fiber();
// Fills the stacks of kLocals runs: a NaN as fp16, bf16 and fp32, with a payload that no computation produces.
constexpr uint16_t kStackPoison = 0xfffb;
bool address_in_stacks(uintptr_t address);
uint64_t random_bits();

// faults.cpp
FaultRecord* report(FaultKind kind, Site site, const char* format, ...) __attribute__((format(printf, 3, 4)));
inline Site site_of(Where where) { return {where.file, where.line, 0}; }

// barriers.cpp, warp.cpp
void reset_barriers();
void exit_from_barriers();
void reset_warps();
void exit_from_warp(const Fiber& fiber);
[[noreturn]] void report_deadlock();

// instrumentation.cpp
extern uintptr_t last_access_pc;  // instruction of the latest instrumented access, 0 at the start of a launch

// image.cpp
struct Image {  // a shared object in memory
    uintptr_t base, first, last;
    bool holds(uintptr_t address) const { return address - first < last - first; }
};
Image image_of(uintptr_t address);
extern Image kernel_image;  // of the launch

// async_copy.cpp
extern Site copy_in_progress;  // where the copy that is being completed was issued; no file between copies
void check_copies_at_exit();

// memory.cpp
void set_up_shared(size_t bytes);
void poison_shared();
void describe_address(uintptr_t address, int* buffer, long* offset, char* text, size_t room);
size_t shared_bytes();

// shadow.cpp
void shadow_begin_launch();
void shadow_end_launch();
void shadow_begin_block();
void shadow_full_barrier();
void shadow_release_to_barrier(int barrier);
void shadow_acquire_from_barrier(int barrier, int fiber);
void shadow_reset_barrier(int barrier);
void shadow_join_warp(int warp, unsigned mask);
void shadow_access(const void* address, size_t bytes, int access, Site site);
void shadow_set_in_flight(const void* address, size_t bytes, bool in_flight);
void shadow_fence();

}  // namespace simt

#define SIMT_DATA extern "C" __attribute__((visibility("default")))
SIMT_DATA simt::Index3 threadIdx, blockIdx, blockDim, gridDim;
SIMT_DATA unsigned char* simt_shared;
SIMT_DATA unsigned simt_lane;
