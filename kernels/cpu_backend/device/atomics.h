// Atomic read-modify-write operations. One fiber runs at a time, so a plain update is atomic; the race detector is told
// that these accesses do not race with each other.
#pragma once

namespace simt {
template <class T, class Update>
SIMT_UNINSTRUMENTED inline T atomic_update(T* address, Where where, Update update) {
    simt_note(address, sizeof(T), kAtomic, where);
    // Copied as bytes: the assignment operator of a class is a function of its own, and an instrumented one.
    T old;
    __builtin_memcpy(&old, address, sizeof(T));
    const T updated = update(old);
    __builtin_memcpy(address, &updated, sizeof(T));
    return old;
}
}  // namespace simt

#define SIMT_ATOMIC(NAME, T, EXPRESSION)                                                                          \
    SIMT_UNINSTRUMENTED static inline T NAME(T* address, T value, simt::Where where = simt::here()) {             \
        return simt::atomic_update(address, where,                                                                \
                                   [=](T old) SIMT_UNINSTRUMENTED -> T { return static_cast<T>(EXPRESSION); });   \
    }
#define SIMT_ATOMIC_INTEGERS(NAME, EXPRESSION)          \
    SIMT_ATOMIC(NAME, int, EXPRESSION)                  \
    SIMT_ATOMIC(NAME, unsigned, EXPRESSION)             \
    SIMT_ATOMIC(NAME, unsigned long long, EXPRESSION)
SIMT_ATOMIC(atomicAdd, int, static_cast<unsigned>(old) + static_cast<unsigned>(value))
SIMT_ATOMIC(atomicAdd, unsigned, old + value)
SIMT_ATOMIC(atomicAdd, unsigned long long, old + value)
SIMT_ATOMIC(atomicAdd, float, old + value)
SIMT_ATOMIC(atomicAdd, double, old + value)
SIMT_ATOMIC(atomicSub, int, static_cast<unsigned>(old) - static_cast<unsigned>(value))
SIMT_ATOMIC(atomicSub, unsigned, old - value)
SIMT_ATOMIC_INTEGERS(atomicMax, old < value ? value : old)
SIMT_ATOMIC_INTEGERS(atomicMin, value < old ? value : old)
SIMT_ATOMIC_INTEGERS(atomicAnd, old & value)
SIMT_ATOMIC_INTEGERS(atomicOr, old | value)
SIMT_ATOMIC_INTEGERS(atomicXor, old ^ value)
SIMT_ATOMIC_INTEGERS(atomicExch, ((void)old, value))
SIMT_ATOMIC(atomicExch, float, ((void)old, value))
SIMT_ATOMIC(atomicInc, unsigned, old >= value ? 0u : old + 1u)
SIMT_ATOMIC(atomicDec, unsigned, old == 0u || old > value ? value : old - 1u)
#undef SIMT_ATOMIC_INTEGERS
#undef SIMT_ATOMIC

#define SIMT_ATOMIC_CAS(T)                                                                                         \
    SIMT_UNINSTRUMENTED static inline T atomicCAS(T* address, T compare, T value, simt::Where where = simt::here()) { \
        return simt::atomic_update(address, where,                                                                 \
                                   [=](T old) SIMT_UNINSTRUMENTED -> T { return old == compare ? value : old; });  \
    }
SIMT_ATOMIC_CAS(int)
SIMT_ATOMIC_CAS(unsigned)
SIMT_ATOMIC_CAS(unsigned long long)
#undef SIMT_ATOMIC_CAS

// Packed 16-bit additions: each half is rounded once, as on the GPU.
#define SIMT_ATOMIC_ADD_16(T)                                                                                      \
    SIMT_UNINSTRUMENTED static inline T atomicAdd(T* address, T value, simt::Where where = simt::here()) {         \
        return simt::atomic_update(address, where, [=](T old) SIMT_UNINSTRUMENTED -> T { return old + value; });   \
    }
SIMT_ATOMIC_ADD_16(__half)
SIMT_ATOMIC_ADD_16(__half2)
SIMT_ATOMIC_ADD_16(__nv_bfloat16)
SIMT_ATOMIC_ADD_16(__nv_bfloat162)
#undef SIMT_ATOMIC_ADD_16
