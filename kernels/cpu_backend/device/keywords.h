// CUDA's keywords and built-in variables for a host compiler. The CUDA headers define some of the keywords for their own
// use; they are replaced afterwards.
#pragma once

#include <vector_functions.h>
#include <vector_types.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __constant__
#undef __launch_bounds__
#undef __noinline__
#undef __forceinline__
#undef __grid_constant__
#if defined(SIMT_CHECKED) && !defined(__clang__)
// g++ does not instrument the load of a class object (a __half, say) that is passed by value to a real call, so a checked
// kernel has every call in it inlined.
#define __global__ __attribute__((flatten))
#else
#define __global__
#endif
#define __device__
#define __host__
#define __constant__ static
#define __launch_bounds__(...)
#define __noinline__ __attribute__((noinline))
#define __forceinline__ inline __attribute__((always_inline))
#define __grid_constant__
// Static shared memory would live outside of the guarded, poisoned window, so it has no spelling here: the loader
// refuses sources that use it, and this makes what slips through a compile error.
#define __shared__ static_assert(false, "use DYN_SMEM(name): static __shared__ is not supported");

extern "C" {
extern uint3 threadIdx;
extern uint3 blockIdx;
extern dim3 blockDim;
extern dim3 gridDim;
extern unsigned char* simt_shared;  // first byte of the block's dynamic shared memory
extern unsigned simt_lane;          // lane of the running thread, 0..31
}
static constexpr int warpSize = 32;

// Functions that touch memory on behalf of the kernel report the access themselves, with the caller's line.
#define SIMT_UNINSTRUMENTED __attribute__((no_sanitize("thread", "undefined", "kernel-address")))

static inline void __trap(simt::Where where = simt::here()) { simt_trap("__trap()", where); }
#undef assert
#define assert(condition) ((condition) ? (void)0 : simt_trap("assertion failed: " #condition, simt::here()))
