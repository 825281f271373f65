// What the instrumented code of a checked build calls: the interfaces of -fsanitize=thread, undefined and kernel-address,
// implemented here instead of by the sanitizers' libraries. The compiler's instrumentation alone is used.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "shadow.h"

namespace simt {

uintptr_t last_access_pc;

namespace {

// Layouts that compilers emit for -fsanitize=undefined: every data block starts with the source location.
struct SanitizerData {
    const char* file;
    uint32_t line, column;
};

inline void instrumented(const void* address, size_t bytes, int access, const void* return_address) {
    if (!launch) return;  // static initialisers of a kernel's image
    last_access_pc = reinterpret_cast<uintptr_t>(return_address) - 1;
    check_access(reinterpret_cast<uintptr_t>(address), bytes, access, compact(Site{nullptr, 0, last_access_pc}));
}

void undefined(FaultKind kind, const void* data, const void* return_address, const char* message, bool fatal) {
    if (!launch) return;
    const auto* location = static_cast<const SanitizerData*>(data);
    const Site site{location->file, static_cast<int>(location->line), reinterpret_cast<uintptr_t>(return_address) - 1};
    report(kind, site, "%s", message);
    if (fatal) abandon_block();
}

// Reads of local variables (-fsanitize=kernel-address calls back for them, thread does not): memory that still holds the
// poison was never written.
void check_local_read(const void* address, size_t bytes, const void* return_address) {
    last_access_pc = reinterpret_cast<uintptr_t>(return_address) - 1;
    if (!launch || bytes < sizeof kStackPoison || !address_in_stacks(reinterpret_cast<uintptr_t>(address))) return;
    const auto* words = static_cast<const uint16_t*>(address);
    if (std::any_of(words, words + bytes / sizeof *words, [](uint16_t word) { return word != kStackPoison; })) return;
    report(kUninitialised, Site{nullptr, 0, last_access_pc}, "reads a local variable that nothing has written");
}

}  // namespace

}  // namespace simt

#define CALLER __builtin_return_address(0)

#define ACCESS(NAME, BYTES, KIND) \
    SIMT_API void __tsan_##NAME(void* address) { simt::instrumented(address, BYTES, simt::KIND, CALLER); }
#define ACCESSES(BYTES)                              \
    ACCESS(read##BYTES, BYTES, kRead)                \
    ACCESS(write##BYTES, BYTES, kWrite)              \
    ACCESS(unaligned_read##BYTES, BYTES, kRead)      \
    ACCESS(unaligned_write##BYTES, BYTES, kWrite)    \
    ACCESS(volatile_read##BYTES, BYTES, kRead)       \
    ACCESS(volatile_write##BYTES, BYTES, kWrite)
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)
SIMT_API void __tsan_read_range(void* address, size_t bytes) {
    if (bytes) simt::instrumented(address, bytes, simt::kRead, CALLER);
}
SIMT_API void __tsan_write_range(void* address, size_t bytes) {
    if (bytes) simt::instrumented(address, bytes, simt::kWrite, CALLER);
}
SIMT_API void __tsan_func_entry(void*) {}
SIMT_API void __tsan_func_exit() {}
SIMT_API void __tsan_init() {}
SIMT_API void __tsan_vptr_update(void**, void*) {}
SIMT_API void __tsan_vptr_read(void**) {}

// Calls to memcpy and its kin are not instrumented; the checked build is linked with --wrap so that they come here.
SIMT_API void* __wrap_memcpy(void* to, const void* from, size_t bytes) {
    if (bytes) simt::instrumented(from, bytes, simt::kRead, CALLER);
    if (bytes) simt::instrumented(to, bytes, simt::kWrite, CALLER);
    return std::memcpy(to, from, bytes);
}
SIMT_API void* __wrap_memmove(void* to, const void* from, size_t bytes) {
    if (bytes) simt::instrumented(from, bytes, simt::kRead, CALLER);
    if (bytes) simt::instrumented(to, bytes, simt::kWrite, CALLER);
    return std::memmove(to, from, bytes);
}
SIMT_API void* __wrap_memset(void* to, int value, size_t bytes) {
    if (bytes) simt::instrumented(to, bytes, simt::kWrite, CALLER);
    return std::memset(to, value, bytes);
}
SIMT_API void* __tsan_memcpy(void* to, const void* from, size_t bytes) { return __wrap_memcpy(to, from, bytes); }
SIMT_API void* __tsan_memmove(void* to, const void* from, size_t bytes) { return __wrap_memmove(to, from, bytes); }
SIMT_API void* __tsan_memset(void* to, int value, size_t bytes) { return __wrap_memset(to, value, bytes); }

#define UNDEFINED(NAME, PARAMETERS, KIND, MESSAGE, FATAL) \
    SIMT_API void __ubsan_handle_##NAME PARAMETERS { simt::undefined(simt::KIND, data, CALLER, MESSAGE, FATAL); }
UNDEFINED(type_mismatch_v1, (void* data, void*), kMisaligned, "access at an address that is not aligned for its type", true)
UNDEFINED(out_of_bounds, (void* data, void*), kOutOfBounds, "index outside of an array of fixed size", true)
UNDEFINED(shift_out_of_bounds, (void* data, void*, void*), kArithmetic, "shift by a negative or too large count", false)
UNDEFINED(add_overflow, (void* data, void*, void*), kArithmetic, "signed integer addition overflows", false)
UNDEFINED(sub_overflow, (void* data, void*, void*), kArithmetic, "signed integer subtraction overflows", false)
UNDEFINED(mul_overflow, (void* data, void*, void*), kArithmetic, "signed integer multiplication overflows", false)
UNDEFINED(negate_overflow, (void* data, void*), kArithmetic, "signed integer negation overflows", false)
UNDEFINED(divrem_overflow, (void* data, void*, void*), kArithmetic, "integer division by zero or overflow", true)
UNDEFINED(float_cast_overflow, (void* data, void*), kArithmetic, "floating-point value does not fit the integer type", false)

#define LOCAL_ACCESS(BYTES)                                                                                            \
    SIMT_API void __asan_load##BYTES##_noabort(void* address) { simt::check_local_read(address, BYTES, CALLER); }      \
    SIMT_API void __asan_store##BYTES##_noabort(void*) {}
LOCAL_ACCESS(1)
LOCAL_ACCESS(2)
LOCAL_ACCESS(4)
LOCAL_ACCESS(8)
LOCAL_ACCESS(16)
SIMT_API void __asan_loadN_noabort(void* address, size_t bytes) { simt::check_local_read(address, bytes, CALLER); }
SIMT_API void __asan_storeN_noabort(void*, size_t) {}
SIMT_API void __asan_handle_no_return() {}
