// Checks of every memory access in a checked run: bounds, read-only buffers, uninitialised and in-flight data, races.
#include "shadow.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

namespace simt {

namespace {

constexpr CompactSite kTabled = 1u << 31;
constexpr unsigned kSites = 4096;  // positions of device calls in one kernel; a power of two

Where site_table[kSites];
Cell* shared_cells;
std::vector<Cell*> buffer_cells;  // null for read-only buffers
int recent_buffer;

Image runtime_image;

Cell* map_cells(size_t bytes) {
    void* map = mmap(nullptr, (bytes / kCellBytes + 2) * sizeof(Cell), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) {
        std::perror("cpu_backend: mmap of shadow memory");
        std::abort();
    }
    return static_cast<Cell*>(map);
}

FaultRecord* report_at(FaultKind kind, CompactSite site, const MemoryRange& range, size_t offset, const char* message) {
    FaultRecord* fault = report(kind, expand(site), "%s", message);
    fault->buffer = range.buffer;
    fault->offset = static_cast<long>(range.offset + offset);
    return fault;
}

void report_race(CompactSite site, CompactSite earlier, const MemoryRange& range, size_t offset, const char* what,
                 uint32_t earlier_phase) {
    char message[160];
    if (earlier_phase < block_first_phase)
        std::snprintf(message, sizeof message, "%s by another block (number %d in order of execution)", what,
                      block_of_phase(earlier_phase));
    else
        std::snprintf(message, sizeof message, "%s by another thread of the block with no barrier between", what);
    report_at(kRace, site, range, offset, message)->other = expand(earlier);
}

// Whether an access of an earlier phase or of this phase is ordered before the running thread.
bool ordered(uint32_t earlier_phase, int thread, uint32_t stamp) {
    if (earlier_phase == phase) return thread == current || happened_before(thread, stamp);
    return earlier_phase >= block_first_phase || heard_from_block_of(earlier_phase);
}

void check_against_write(Cell& cell, int access, CompactSite site, const MemoryRange& range, size_t offset) {
    if (!cell.write_phase || (range.buffer == -1 && cell.write_phase < block_first_phase)) return;
    if (ordered(cell.write_phase, cell.write_thread, cell.write_stamp)) return;
    if ((access & kAtomic) && cell.write_atomic) return;
    report_race(site, cell.write_site, range, offset, access == kRead ? "reads what was written" : "overwrites what was written",
                cell.write_phase);
}

bool reads_ordered(const Cell& cell) {
    if (cell.read_phase != phase) return cell.read_phase >= block_first_phase || heard_from_block_of(cell.read_phase);
    for (unsigned rest = cell.read_lanes; rest; rest &= rest - 1) {
        const int thread = static_cast<int>(cell.read_warp * 32) + __builtin_ctz(rest);
        if (thread != current && !happened_before(thread, cell.read_stamp)) return false;
    }
    for (unsigned rest = cell.other_warps & ~(1u << self().warp); rest; rest &= rest - 1)
        if (!heard_from_warp(static_cast<unsigned>(__builtin_ctz(rest)))) return false;
    return true;
}

void record_read(Cell& cell, CompactSite site) {
    const unsigned warp = static_cast<unsigned>(self().warp), lane = 1u << self().lane;
    const uint32_t stamp = stamp_now();
    cell.read_site = site;
    if (cell.read_phase == phase && cell.read_warp == warp && cell.read_stamp == stamp) {
        cell.read_lanes |= lane;
        return;
    }
    unsigned kept = 0, others = 0;
    uint32_t kept_stamp = stamp;
    if (cell.read_phase == phase) {
        others = cell.other_warps;
        if (cell.read_warp != warp) others |= 1u << cell.read_warp;
        // Earlier reads of this warp that are ordered before this one need no record of their own. For those that are
        // not, the older stamp is kept for all: that can miss a race, never invent one.
        for (unsigned rest = cell.read_warp == warp ? cell.read_lanes : 0; rest; rest &= rest - 1) {
            const int other = __builtin_ctz(rest);
            if (happened_before(static_cast<int>(warp * 32) + other, cell.read_stamp)) continue;
            kept |= 1u << other;
            kept_stamp = cell.read_stamp;
        }
    }
    cell.read_phase = phase;
    cell.read_warp = warp;
    cell.other_warps = others;
    cell.read_lanes = kept | lane;
    cell.read_stamp = kept_stamp;
}

void check_read(Cell& cell, CompactSite site, const MemoryRange& range, size_t offset) {
    check_against_write(cell, kRead, site, range, offset);
    const bool written = cell.write_phase >= (range.buffer == -1 ? block_first_phase : 1);
    if (!written && !range.initialised) {
        report_at(kUninitialised, site, range, offset, "reads memory that nothing has written");
    } else if (written && cell.in_flight) {
        report_at(kInFlightCopy, site, range, offset, "reads the destination of a cp.async that was not waited for")
            ->other = expand(cell.write_site);
    }
    record_read(cell, site);
}

void check_write(Cell& cell, int access, CompactSite site, const MemoryRange& range, size_t offset) {
    check_against_write(cell, access, site, range, offset);
    const bool reads_matter = cell.read_phase && (range.buffer != -1 || cell.read_phase >= block_first_phase);
    if (reads_matter && !reads_ordered(cell))
        report_race(site, cell.read_site, range, offset, "overwrites what was read", cell.read_phase);
    cell.write_phase = phase;
    cell.write_stamp = stamp_now();
    cell.write_site = site;
    cell.write_thread = static_cast<uint16_t>(current);
    cell.write_atomic = access & kAtomic;
    cell.in_flight = false;
    cell.read_phase = 0;
}

void check_cells(const MemoryRange& range, size_t bytes, int access, CompactSite site) {
    const size_t first = range.offset / kCellBytes, last = (range.offset + bytes - 1) / kCellBytes;
    for (size_t i = first; i <= last; i++) {
        const size_t offset = i * kCellBytes - range.offset;
        if (bytes == 1 && access == kWrite) {
            range.cells[i].write_phase = phase;  // initialised, and ordered like any earlier write of this thread
            range.cells[i].write_thread = static_cast<uint16_t>(current);
            range.cells[i].write_stamp = 0;
        } else if (access == kRead) {
            check_read(range.cells[i], site, range, offset);
        } else {
            check_write(range.cells[i], access, site, range, offset);
        }
    }
}

[[noreturn]] void report_out_of_bounds(uintptr_t address, size_t bytes, int access, CompactSite site) {
    int buffer;
    long offset;
    char place[160];
    describe_address(address, &buffer, &offset, place, sizeof place);
    FaultRecord* fault = report(kOutOfBounds, expand(site), "%s of %zu bytes at %s", access == kRead ? "read" : "write",
                                bytes, place);
    fault->buffer = buffer;
    fault->offset = offset;
    abandon_block();
}

bool find_buffer(uintptr_t address, MemoryRange* range) {
    for (int i = 0; i < launch->buffer_count; i++) {
        const int index = (recent_buffer + i) % launch->buffer_count;
        const BufferRecord& record = launch->buffers[index];
        const size_t offset = address - reinterpret_cast<uintptr_t>(record.base);
        if (offset >= record.bytes) continue;
        recent_buffer = index;
        *range = {buffer_cells[static_cast<size_t>(index)], index, offset, record.initialised != 0};
        return true;
    }
    return false;
}

void check_buffer_access(const MemoryRange& range, uintptr_t address, size_t bytes, int access, CompactSite site) {
    const BufferRecord& record = launch->buffers[range.buffer];
    if (range.offset + bytes > record.bytes) report_out_of_bounds(address, bytes, access, site);
    if (access != kRead && !record.writable) {
        report_at(kReadOnlyWrite, site, range, 0, "writes a buffer that the kernel may only read");
        abandon_block();
    }
    if (range.cells) {
        check_cells(range, bytes, access, site);
    } else if (!record.initialised) {
        report_at(kUninitialised, site, range, 0, "reads memory that nothing has written");
    }
}

}  // namespace

CompactSite compact(Site site) {
    if (!site.file) return static_cast<CompactSite>(site.pc - kernel_image.base);
    const auto hash = reinterpret_cast<uintptr_t>(site.file) * 31 + static_cast<unsigned>(site.line);
    for (unsigned probe = 0; probe < kSites; probe++) {
        const unsigned index = (static_cast<unsigned>(hash) * 2654435761u + probe) % kSites;
        Where& entry = site_table[index];
        if (!entry.file) entry = {site.file, site.line};
        if (entry.file == site.file && entry.line == site.line) return kTabled | index;
    }
    return 0;
}

Site expand(CompactSite site) {
    if (!(site & kTabled)) return {nullptr, 0, kernel_image.base + site};
    const Where& where = site_table[site & ~kTabled];
    return {where.file, where.line, 0};
}

void check_access(uintptr_t address, size_t bytes, int access, CompactSite site) {
    const size_t offset = address - reinterpret_cast<uintptr_t>(simt_shared);
    if (offset < shared_bytes()) {
        launch->accesses++;
        if (offset + bytes > shared_bytes()) report_out_of_bounds(address, bytes, access, site);
        check_cells({shared_cells, -1, offset, false}, bytes, access, site);
        return;
    }
    if (address_in_stacks(address) || kernel_image.holds(address) || runtime_image.holds(address)) return;
    launch->accesses++;
    MemoryRange range;
    if (!find_buffer(address, &range)) report_out_of_bounds(address, bytes, access, site);
    check_buffer_access(range, address, bytes, access, site);
}

void shadow_access(const void* address, size_t bytes, int access, Site site) {
    check_access(reinterpret_cast<uintptr_t>(address), bytes, access, compact(site));
}

void shadow_set_in_flight(const void* address, size_t bytes, bool in_flight) {
    const size_t offset = static_cast<size_t>(static_cast<const unsigned char*>(address) - simt_shared);
    for (size_t i = offset / kCellBytes; i <= (offset + bytes - 1) / kCellBytes; i++) shared_cells[i].in_flight = in_flight;
}

void shadow_begin_launch() {
    if (!shared_cells) shared_cells = map_cells(kSharedLimit);
    runtime_image = image_of(reinterpret_cast<uintptr_t>(&shadow_begin_launch));
    for (Where& entry : site_table) entry = Where{};
    recent_buffer = 0;
    buffer_cells.assign(static_cast<size_t>(launch->buffer_count), nullptr);
    for (size_t i = 0; i < buffer_cells.size(); i++)
        if (launch->buffers[i].writable) buffer_cells[i] = map_cells(launch->buffers[i].bytes);
    order_begin_launch();
}

void shadow_end_launch() {
    for (size_t i = 0; i < buffer_cells.size(); i++)
        if (buffer_cells[i]) munmap(buffer_cells[i], (launch->buffers[i].bytes / kCellBytes + 2) * sizeof(Cell));
}

void shadow_begin_block() { order_begin_block(); }

}  // namespace simt

SIMT_API void simt_note(const void* address, size_t bytes, int access, simt::Where where) {
    using namespace simt;
    if (launch->checks != kMemory) return;
    const auto location = reinterpret_cast<uintptr_t>(address);
    if (access & kAtomic) order_atomic(location);
    check_access(location, bytes, access, compact(site_of(where)));
}
