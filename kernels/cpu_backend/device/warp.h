// Warp-level operations: __syncwarp, shuffles, votes, match, reduce. Semantics follow the PTX instructions
// (shfl.sync, vote.sync, match.sync, redux.sync).
#pragma once

namespace simt {

inline void execute_nothing(unsigned, const void* const*, void* const*) {}
inline constexpr WarpOp syncwarp_op{"__syncwarp", execute_nothing, false, true};

template <class T>
struct ShuffleInput {
    T value;
    int source_lane;
};

// Reading a lane that does not take part is undefined on a GPU; here it yields all-ones (a NaN for floats).
template <class T>
void execute_shuffle(unsigned mask, const void* const* in, void* const* out) {
    for (int lane = 0; lane < 32; lane++) {
        if (!(mask >> lane & 1)) continue;
        const int source = static_cast<const ShuffleInput<T>*>(in[lane])->source_lane;
        if (mask >> source & 1)
            std::memcpy(out[lane], &static_cast<const ShuffleInput<T>*>(in[source])->value, sizeof(T));
        else
            std::memset(out[lane], 0xff, sizeof(T));
    }
}
template <class T>
inline constexpr WarpOp shuffle_op{"shuffle", execute_shuffle<T>, false, false};

template <class T>
inline T shuffle(unsigned mask, T value, int source_lane, Where where) {
    static_assert(std::is_trivially_copyable<T>::value && sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
    const ShuffleInput<T> input{value, source_lane};
    T result;
    simt_warp(mask, &shuffle_op<T>, &input, &result, where);
    return result;
}

inline int segment_start(int width) { return static_cast<int>(simt_lane) & ~(width - 1); }

// Applies `combine(accumulator, value)` over the lanes of the mask and hands the result to each of them.
template <class T, T (*combine)(T, T)>
void execute_reduce(unsigned mask, const void* const* in, void* const* out) {
    T total{};
    bool first = true;
    for (int lane = 0; lane < 32; lane++) {
        if (!(mask >> lane & 1)) continue;
        const T value = *static_cast<const T*>(in[lane]);
        total = first ? value : combine(total, value);
        first = false;
    }
    for (int lane = 0; lane < 32; lane++)
        if (mask >> lane & 1) *static_cast<T*>(out[lane]) = total;
}
template <class T, T (*combine)(T, T)>
inline constexpr WarpOp reduce_op{"reduce", execute_reduce<T, combine>, false, false};
template <class T, T (*combine)(T, T)>
inline T reduce(unsigned mask, T value, Where where) {
    T result;
    simt_warp(mask, &reduce_op<T, combine>, &value, &result, where);
    return result;
}
template <class T> inline T wrapping_add(T a, T b) {
    return static_cast<T>(static_cast<unsigned>(a) + static_cast<unsigned>(b));
}
template <class T> inline T smaller(T a, T b) { return b < a ? b : a; }
template <class T> inline T larger(T a, T b) { return a < b ? b : a; }
template <class T> inline T bit_and(T a, T b) { return a & b; }
template <class T> inline T bit_or(T a, T b) { return a | b; }
template <class T> inline T bit_xor(T a, T b) { return a ^ b; }

inline void execute_ballot(unsigned mask, const void* const* in, void* const* out) {
    unsigned votes = 0;
    for (int lane = 0; lane < 32; lane++)
        if ((mask >> lane & 1) && *static_cast<const int*>(in[lane])) votes |= 1u << lane;
    for (int lane = 0; lane < 32; lane++)
        if (mask >> lane & 1) *static_cast<unsigned*>(out[lane]) = votes;
}
inline constexpr WarpOp ballot_op{"vote", execute_ballot, false, false};

template <class T>
void execute_match(unsigned mask, const void* const* in, void* const* out) {
    for (int lane = 0; lane < 32; lane++) {
        if (!(mask >> lane & 1)) continue;
        unsigned equal = 0;
        for (int other = 0; other < 32; other++)
            if ((mask >> other & 1) && !std::memcmp(in[lane], in[other], sizeof(T))) equal |= 1u << other;
        *static_cast<unsigned*>(out[lane]) = equal;
    }
}
template <class T>
inline constexpr WarpOp match_op{"match", execute_match<T>, false, false};

}  // namespace simt

static inline void __syncwarp(unsigned mask = ~0u, simt::Where where = simt::here()) {
    simt_warp(mask, &simt::syncwarp_op, nullptr, nullptr, where);
}

template <class T>
static inline T __shfl_sync(unsigned mask, T value, int source, int width = 32, simt::Where where = simt::here()) {
    return simt::shuffle(mask, value, simt::segment_start(width) | (source & (width - 1)), where);
}
template <class T>
static inline T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32, simt::Where where = simt::here()) {
    const int source = static_cast<int>(simt_lane) ^ (lanes & 31);
    const bool inside = source < simt::segment_start(width) + width;  // a lower segment may be read, a higher one not
    return simt::shuffle(mask, value, inside ? source : static_cast<int>(simt_lane), where);
}
template <class T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                                 simt::Where where = simt::here()) {
    const int source = static_cast<int>(simt_lane + (delta & 31));
    const bool inside = source < simt::segment_start(width) + width;
    return simt::shuffle(mask, value, inside ? source : static_cast<int>(simt_lane), where);
}
template <class T>
static inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32,
                               simt::Where where = simt::here()) {
    const int source = static_cast<int>(simt_lane) - static_cast<int>(delta & 31);
    const bool inside = source >= simt::segment_start(width);
    return simt::shuffle(mask, value, inside ? source : static_cast<int>(simt_lane), where);
}

static inline unsigned __ballot_sync(unsigned mask, int predicate, simt::Where where = simt::here()) {
    unsigned votes;
    simt_warp(mask, &simt::ballot_op, &predicate, &votes, where);
    return votes;
}
static inline int __any_sync(unsigned mask, int predicate, simt::Where where = simt::here()) {
    return __ballot_sync(mask, predicate, where) != 0;
}
static inline int __all_sync(unsigned mask, int predicate, simt::Where where = simt::here()) {
    return __ballot_sync(mask, predicate == 0, where) == 0;
}

template <class T>
static inline unsigned __match_any_sync(unsigned mask, T value, simt::Where where = simt::here()) {
    unsigned equal;
    simt_warp(mask, &simt::match_op<T>, &value, &equal, where);
    return equal;
}
template <class T>
static inline unsigned __match_all_sync(unsigned mask, T value, int* all_equal, simt::Where where = simt::here()) {
    const unsigned equal = __match_any_sync(mask, value, where);
    *all_equal = __all_sync(mask, equal == __ballot_sync(mask, 1, where), where);
    return *all_equal ? equal : 0u;
}

#define SIMT_REDUCE(NAME, T, COMBINE)                                                                   \
    static inline T NAME(unsigned mask, T value, simt::Where where = simt::here()) {                    \
        return simt::reduce<T, simt::COMBINE<T>>(mask, value, where);                                   \
    }
SIMT_REDUCE(__reduce_add_sync, int, wrapping_add)
SIMT_REDUCE(__reduce_add_sync, unsigned, wrapping_add)
SIMT_REDUCE(__reduce_min_sync, int, smaller)
SIMT_REDUCE(__reduce_min_sync, unsigned, smaller)
SIMT_REDUCE(__reduce_max_sync, int, larger)
SIMT_REDUCE(__reduce_max_sync, unsigned, larger)
SIMT_REDUCE(__reduce_and_sync, unsigned, bit_and)
SIMT_REDUCE(__reduce_or_sync, unsigned, bit_or)
SIMT_REDUCE(__reduce_xor_sync, unsigned, bit_xor)
#undef SIMT_REDUCE
