// cp.async with the latest completion that the programming model allows: the destination is poisoned when the copy is
// issued, and filled when its group is waited for. A kernel that reads too early sees NaN patterns, not luck.
#include <cstring>

#include "state.h"

namespace simt {

Site copy_in_progress;

namespace {

Copy copies[kMaxThreads][kMaxCopies];

void complete(const Copy& copy) {
    if (launch->checks == kMemory) {
        shadow_set_in_flight(copy.destination, static_cast<size_t>(copy.bytes), false);
        if (copy.source_bytes) shadow_access(copy.source, static_cast<size_t>(copy.source_bytes), kRead, copy.site);
        shadow_access(copy.destination, static_cast<size_t>(copy.bytes), kWrite, copy.site);
    }
    copy_in_progress = copy.site;
    std::memcpy(copy.destination, copy.source, static_cast<size_t>(copy.source_bytes));
    std::memset(copy.destination + copy.source_bytes, 0, static_cast<size_t>(copy.bytes - copy.source_bytes));
    copy_in_progress = Site{};
}

}  // namespace

void check_copies_at_exit() {
    const Fiber& fiber = self();
    if (fiber.copy_head == fiber.copy_tail) return;
    const Copy& oldest = copies[current][fiber.copy_head % kMaxCopies];
    report(kInFlightCopy, oldest.site, "thread %d exits with %u cp.async copies never waited for", current,
           fiber.copy_tail - fiber.copy_head);
}

}  // namespace simt

SIMT_API void simt_copy_async(unsigned shared_address, const void* source, int bytes, int source_bytes,
                              simt::Where where) {
    using namespace simt;
    Fiber& fiber = self();
    const auto from = reinterpret_cast<uintptr_t>(source);
    const unsigned low_bits = static_cast<unsigned>(bytes) - 1;
    if ((shared_address & low_bits) || (source_bytes && (from & low_bits))) {
        report(kMisaligned, site_of(where), "cp.async of %d bytes: shared offset %u, source address %#zx", bytes,
               shared_address, static_cast<size_t>(from));
        abandon_block();
    }
    if (fiber.copy_tail - fiber.copy_head == kMaxCopies) simt_trap("more than 512 cp.async in flight in one thread", where);
    Copy& copy = copies[current][fiber.copy_tail++ % kMaxCopies];
    copy = Copy{simt_shared + shared_address, static_cast<const unsigned char*>(source), bytes, source_bytes,
                fiber.copy_group, site_of(where)};
    if (launch->checks == kMemory) {
        shadow_access(copy.destination, static_cast<size_t>(bytes), kWrite, copy.site);
        shadow_set_in_flight(copy.destination, static_cast<size_t>(bytes), true);
    }
    std::memset(copy.destination, 0xff, static_cast<size_t>(bytes));
}

SIMT_API void simt_copy_commit() { simt::self().copy_group++; }

SIMT_API void simt_copy_wait(int groups_left) {
    using namespace simt;
    Fiber& fiber = self();
    // Groups are numbered from 0; those below `done` are complete. Copies not yet committed are never waited for.
    const unsigned left = static_cast<unsigned>(groups_left);
    const unsigned done = fiber.copy_group > left ? fiber.copy_group - left : 0;
    while (fiber.copy_head != fiber.copy_tail && copies[current][fiber.copy_head % kMaxCopies].group < done)
        complete(copies[current][fiber.copy_head++ % kMaxCopies]);
}
