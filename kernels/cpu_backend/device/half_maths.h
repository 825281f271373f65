// 16-bit arithmetic that cuda_fp16.h and cuda_bf16.h only declare for a device compiler. Every operation is computed
// wider and rounded once; fma is exact before that rounding.
#pragma once

namespace simt {

// a*b + c for 16-bit formats, as a double that rounds to any narrower format like the exact value: the product is exact
// in double, and a sum that is not exact is forced to an odd last bit (round to odd, Boldo and Melquiond 2008).
inline double fma_to_odd(double a, double b, double c) {
    const double product = a * b;
    const double sum = product + c;
    const double back = sum - product;
    const double error = (product - (sum - back)) + (c - back);
    if (error == 0.0 || !std::isfinite(sum)) return sum;
    const auto pattern = bits<unsigned long long>(sum);
    if (pattern & 1) return sum;
    const bool away_from_zero = (error > 0.0) == (sum > 0.0);
    return bits<double>(away_from_zero ? pattern + 1 : pattern - 1);
}

}  // namespace simt

static inline __half __hfma(__half a, __half b, __half c) {
    return __double2half(simt::fma_to_odd(__half2float(a), __half2float(b), __half2float(c)));
}
static inline __nv_bfloat16 __hfma(__nv_bfloat16 a, __nv_bfloat16 b, __nv_bfloat16 c) {
    return __double2bfloat16(simt::fma_to_odd(__bfloat162float(a), __bfloat162float(b), __bfloat162float(c)));
}
static inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) {
    return __halves2half2(__hfma(__low2half(a), __low2half(b), __low2half(c)),
                          __hfma(__high2half(a), __high2half(b), __high2half(c)));
}
static inline __nv_bfloat162 __hfma2(__nv_bfloat162 a, __nv_bfloat162 b, __nv_bfloat162 c) {
    return __halves2bfloat162(__hfma(__low2bfloat16(a), __low2bfloat16(b), __low2bfloat16(c)),
                              __hfma(__high2bfloat16(a), __high2bfloat16(b), __high2bfloat16(c)));
}

#define SIMT_HALF_FUNCTION(NAME, HOST)                                                                              \
    static inline __half h##NAME(__half x) { return __float2half_rn(HOST(__half2float(x))); }                       \
    static inline __nv_bfloat16 h##NAME(__nv_bfloat16 x) { return __float2bfloat16_rn(HOST(__bfloat162float(x))); } \
    static inline __half2 h2##NAME(__half2 x) {                                                                     \
        return __halves2half2(h##NAME(__low2half(x)), h##NAME(__high2half(x)));                                     \
    }                                                                                                               \
    static inline __nv_bfloat162 h2##NAME(__nv_bfloat162 x) {                                                       \
        return __halves2bfloat162(h##NAME(__low2bfloat16(x)), h##NAME(__high2bfloat16(x)));                         \
    }
SIMT_HALF_FUNCTION(exp, expf)
SIMT_HALF_FUNCTION(exp2, exp2f)
SIMT_HALF_FUNCTION(log, logf)
SIMT_HALF_FUNCTION(log2, log2f)
SIMT_HALF_FUNCTION(sqrt, sqrtf)
SIMT_HALF_FUNCTION(rsqrt, rsqrtf)
SIMT_HALF_FUNCTION(tanh, tanhf)
SIMT_HALF_FUNCTION(rcp, __frcp_rn)
#undef SIMT_HALF_FUNCTION
