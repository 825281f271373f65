// Device mathematics that a host compiler lacks. Host libm stands in for the GPU's: results agree to a few ulp, not bit
// for bit, except where the operation is correctly rounded (fma, rn arithmetic, conversions).
#pragma once

// glibc declares __expf, __logf and others itself, so the device spellings are renamed.
namespace simt {
inline float fast_expf(float x) { return ::expf(x); }
inline float fast_exp10f(float x) { return ::exp10f(x); }
inline float fast_logf(float x) { return ::logf(x); }
inline float fast_log2f(float x) { return ::log2f(x); }
inline float fast_log10f(float x) { return ::log10f(x); }
inline float fast_powf(float x, float y) { return ::powf(x, y); }
inline float fast_sinf(float x) { return ::sinf(x); }
inline float fast_cosf(float x) { return ::cosf(x); }
inline float fast_tanhf(float x) { return ::tanhf(x); }

// Keeps a rounded product or sum from being contracted into an fma, as the _rn intrinsics promise.
inline float rounded(float x) {
#if defined(__x86_64__)
    asm("" : "+x"(x));
#else
    asm("" : "+w"(x));
#endif
    return x;
}
template <class To, class From>
inline To bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "a bit cast keeps the size");
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}
}  // namespace simt
#define __expf simt::fast_expf
#define __exp10f simt::fast_exp10f
#define __logf simt::fast_logf
#define __log2f simt::fast_log2f
#define __log10f simt::fast_log10f
#define __powf simt::fast_powf
#define __sinf simt::fast_sinf
#define __cosf simt::fast_cosf
#define __tanhf simt::fast_tanhf

static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __fadd_rn(float a, float b) { return simt::rounded(a + b); }
static inline float __fsub_rn(float a, float b) { return simt::rounded(a - b); }
static inline float __fmul_rn(float a, float b) { return simt::rounded(a * b); }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __frcp_rn(float a) { return 1.0f / a; }
static inline float __fsqrt_rn(float a) { return sqrtf(a); }
static inline float __frsqrt_rn(float a) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(a))); }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
static inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }

static inline unsigned __float_as_uint(float x) { return simt::bits<unsigned>(x); }
static inline int __float_as_int(float x) { return simt::bits<int>(x); }
static inline float __uint_as_float(unsigned x) { return simt::bits<float>(x); }
static inline float __int_as_float(int x) { return simt::bits<float>(x); }
static inline long long __double_as_longlong(double x) { return simt::bits<long long>(x); }
static inline double __longlong_as_double(long long x) { return simt::bits<double>(x); }
static inline float __int2float_rn(int x) { return static_cast<float>(x); }
static inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }
static inline int __float2int_rn(float x) { return static_cast<int>(nearbyintf(x)); }
static inline int __float2int_rz(float x) { return static_cast<int>(x); }

static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline unsigned __umulhi(unsigned a, unsigned b) {
    return static_cast<unsigned>(static_cast<unsigned long long>(a) * b >> 32);
}
static inline int __mulhi(int a, int b) { return static_cast<int>(static_cast<long long>(a) * b >> 32); }
static inline unsigned __brev(unsigned x) {
    unsigned reversed = 0;
    for (int bit = 0; bit < 32; bit++) reversed |= (x >> bit & 1u) << (31 - bit);
    return reversed;
}
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    const unsigned long long bytes = static_cast<unsigned long long>(y) << 32 | x;
    unsigned result = 0;
    for (int i = 0; i < 4; i++) {
        const unsigned choice = selector >> (4 * i) & 0xf;
        unsigned byte = static_cast<unsigned>(bytes >> (8 * (choice & 7))) & 0xff;
        if (choice & 8) byte = byte & 0x80 ? 0xff : 0x00;  // bit 3 of a selector replicates the sign
        result |= byte << (8 * i);
    }
    return result;
}

// min and max of CUDA: the floating-point ones ignore a NaN operand (fminf, fmaxf), unlike std::min and std::max.
#define SIMT_MIN_MAX(T)                                             \
    static inline T min(T a, T b) { return b < a ? b : a; }         \
    static inline T max(T a, T b) { return a < b ? b : a; }
SIMT_MIN_MAX(int)
SIMT_MIN_MAX(unsigned)
SIMT_MIN_MAX(long)
SIMT_MIN_MAX(unsigned long)
SIMT_MIN_MAX(long long)
SIMT_MIN_MAX(unsigned long long)
#undef SIMT_MIN_MAX
static inline unsigned min(unsigned a, int b) { return min(a, static_cast<unsigned>(b)); }
static inline unsigned min(int a, unsigned b) { return min(static_cast<unsigned>(a), b); }
static inline unsigned max(unsigned a, int b) { return max(a, static_cast<unsigned>(b)); }
static inline unsigned max(int a, unsigned b) { return max(static_cast<unsigned>(a), b); }
static inline long min(long a, int b) { return min(a, static_cast<long>(b)); }
static inline long min(int a, long b) { return min(static_cast<long>(a), b); }
static inline long max(long a, int b) { return max(a, static_cast<long>(b)); }
static inline long max(int a, long b) { return max(static_cast<long>(a), b); }
static inline long long min(long long a, int b) { return min(a, static_cast<long long>(b)); }
static inline long long min(int a, long long b) { return min(static_cast<long long>(a), b); }
static inline long long max(long long a, int b) { return max(a, static_cast<long long>(b)); }
static inline long long max(int a, long long b) { return max(static_cast<long long>(a), b); }
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }

// Cached loads are ordinary loads here; always inlined, so that a fault names the caller's line.
#define SIMT_LOAD(NAME)                                                                  \
    template <class T>                                                                   \
    static inline __attribute__((always_inline)) T NAME(const T* address) { return *address; }
SIMT_LOAD(__ldg)
SIMT_LOAD(__ldcg)
SIMT_LOAD(__ldca)
SIMT_LOAD(__ldcs)
#undef SIMT_LOAD
#define SIMT_STORE(NAME)                                                                 \
    template <class T>                                                                   \
    static inline __attribute__((always_inline)) void NAME(T* address, T value) { *address = value; }
SIMT_STORE(__stcg)
SIMT_STORE(__stcs)
SIMT_STORE(__stwt)
#undef SIMT_STORE
