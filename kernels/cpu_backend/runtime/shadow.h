// Shadow memory of checked runs: what was last written and read, by whom, for every two bytes of shared memory and of the
// writable buffers.
#pragma once

#include <cstdint>

#include "state.h"

namespace simt {

// Source position in 32 bits: an instruction's offset in the kernel's image, or the top bit and an index of a table.
using CompactSite = uint32_t;

// Two bytes, the narrowest element of an attention kernel. Byte-wide stores count as stores to the whole cell, except that
// they take no part in race detection (two threads may own the halves of a cell).
constexpr size_t kCellBytes = 2;

struct Cell {
    uint32_t write_phase;  // 0: never written
    uint32_t write_stamp;
    CompactSite write_site;
    uint16_t write_thread;
    bool write_atomic;
    bool in_flight;  // destination of a cp.async that has not been waited for

    uint32_t read_phase;  // 0: not read since the last write
    uint32_t read_stamp;
    CompactSite read_site;
    uint32_t read_lanes;   // lanes of read_warp that read at read_stamp
    uint32_t read_warp;
    uint32_t other_warps;  // other warps that read in the same phase
};

struct MemoryRange {
    Cell* cells;
    int buffer;  // -1: shared memory
    size_t offset;
    bool initialised;
};

CompactSite compact(Site site);
Site expand(CompactSite site);
void check_access(uintptr_t address, size_t bytes, int access, CompactSite site);

// order.cpp: happens-before inside a block
extern uint32_t phase;              // number of whole-block barriers and block starts so far
extern uint32_t block_first_phase;  // phase in which the running block began
uint32_t stamp_now();
bool happened_before(int thread, uint32_t stamp);
bool heard_from_warp(unsigned warp);
int block_of_phase(uint32_t earlier);
bool heard_from_block_of(uint32_t earlier_phase);
void order_begin_launch();
void order_begin_block();
void order_atomic(uintptr_t address);

}  // namespace simt
