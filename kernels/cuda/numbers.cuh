// Number types shared by the kernels: the storage type, its conversions, infinity and the mark of a hidden pair.
//
// Macro: STORAGE = float, __half or __nv_bfloat16, the element type of q, k, v, out and their gradients.
#pragma once

#include "ptx.cuh"

#ifndef STORAGE
#error "STORAGE must be float, __half or __nv_bfloat16"
#endif

using Scalar = STORAGE;

constexpr unsigned int FULL_WARP = 0xffffffffu;
constexpr int WARP = 32;

__device__ __forceinline__ float infinity() { return __uint_as_float(0x7f800000u); }

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

// Round to nearest even, once, at the store.
__device__ __forceinline__ void store(float* to, float x) { *to = x; }
__device__ __forceinline__ void store(__half* to, float x) { *to = __float2half_rn(x); }
__device__ __forceinline__ void store(__nv_bfloat16* to, float x) { *to = __float2bfloat16_rn(x); }

// Inputs that may be fp32 beside a narrower storage type (bias, sink).
__device__ __forceinline__ float load_mixed(const void* data, long long index, int is_fp32)
{
    return is_fp32 ? static_cast<const float*>(data)[index] : to_float(static_cast<const Scalar*>(data)[index]);
}

__device__ __forceinline__ void store_mixed(void* data, long long index, int is_fp32, float x)
{
    if (is_fp32)
        static_cast<float*>(data)[index] = x;
    else
        store(static_cast<Scalar*>(data) + index, x);
}

// A pair that the row may not see is marked, in P and in dS, by a signalling NaN. Arithmetic returns quiet NaNs only
// (IEEE 754-2019, 6.2), so the mark is never mistaken for a computed NaN: hidden pairs are skipped, while a NaN that a
// row may see reaches the row. Multiplying by zero would not do: 0 * NaN is NaN.
constexpr unsigned int HIDDEN_BITS = 0x7fa00001u;

__device__ __forceinline__ float hidden_mark() { return __uint_as_float(HIDDEN_BITS); }
__device__ __forceinline__ bool is_hidden(float x) { return __float_as_uint(x) == HIDDEN_BITS; }

__device__ __forceinline__ float not_a_number() { return __uint_as_float(0x7fc00000u); }

// The running maximum m of a row is -inf while no visible key has been met. A visible score, even one of -inf, raises
// it to a finite number at least: exp(score - m) is then 0 and never exp(-inf + inf). fmaxf passes over a NaN score;
// the NaN comes back through exp.
constexpr float LOWEST = -3.402823466e38f;

__device__ __forceinline__ float raised_max(float row_max, float score) { return fmaxf(row_max, fmaxf(score, LOWEST)); }
__device__ __forceinline__ float finite_shift(float row_max) { return row_max == -infinity() ? 0.0f : row_max; }

// What a row without weight (l = 0) gives. It saw no key: out = 0, lse = -inf. It saw only scores of -inf: NaN, as the
// softmax of such a row is.
__device__ __forceinline__ float weightless_out(float row_max)
{
    return row_max == -infinity() ? 0.0f : not_a_number();
}

__device__ __forceinline__ float weightless_lse(float row_max)
{
    return row_max == -infinity() ? row_max : not_a_number();
}
