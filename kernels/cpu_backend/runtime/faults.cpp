// Fault records: kept in the caller's array, at most kMaxFaults, one per pair of source positions and kind.
#include <cstdarg>
#include <cstdio>

#include "state.h"

namespace simt {

static bool same_site(const Site& a, const Site& b) { return a.pc == b.pc && a.line == b.line && a.file == b.file; }

// Returns the new record, so that the caller can add the buffer or the other site; a scratch record if it is a repeat.
FaultRecord* report(FaultKind kind, Site site, const char* format, ...) {
    static FaultRecord repeated;
    for (int i = 0; i < launch->fault_count; i++)
        if (launch->faults[i].kind == kind && same_site(launch->faults[i].site, site)) return &repeated;
    if (launch->fault_count == kMaxFaults) return &repeated;
    FaultRecord& fault = launch->faults[launch->fault_count++];
    fault.kind = kind;
    fault.buffer = -2;
    fault.offset = 0;
    fault.block = block_index;
    fault.thread = self().thread;
    fault.site = site;
    fault.other = Site{};
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(fault.message, sizeof fault.message, format, arguments);
    va_end(arguments);
    return &fault;
}

}  // namespace simt

SIMT_API void simt_trap(const char* message, simt::Where where) {
    simt::report(simt::kTrap, simt::site_of(where), "%s", message);
    simt::abandon_block();
}
