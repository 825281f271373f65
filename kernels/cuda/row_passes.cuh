// Two passes of the backward that work on rows, not on pairs; the same in every version.
//
//   backward_delta   delta[b,h,i] = sum_c dO[b,i,h,c] * O[b,i,h,c] - dlse[b,h,i]
//                    grid (ceil(seqlen_q / warps), nheads, batch), one warp a row
//   backward_sink    dsink[h] = - sum_{b,i} exp(sink[h] - lse[b,h,i]) * delta[b,h,i]
//                    grid (nheads), one block a head; shared memory THREADS * 4 bytes
//
// O is the stored, rounded output. The gradient of lse joins here because d(lse)/dS = P: dS = P * (dP - delta).
#pragma once

#include "pairs.cuh"

static_assert(THREADS >= WARP && (THREADS & (THREADS - 1)) == 0, "whole warps, and a power of two for the tree sum");

__device__ __forceinline__ float warp_sum(float x)
{
    for (int step = WARP / 2; step > 0; step /= 2)
        x += __shfl_xor_sync(FULL_WARP, x, step);
    return x;
}

__device__ __forceinline__ float warp_max(float x)
{
    for (int step = WARP / 2; step > 0; step /= 2)
        x = fmaxf(x, __shfl_xor_sync(FULL_WARP, x, step));
    return x;
}

extern "C" __global__ void __launch_bounds__(THREADS) backward_delta(BackwardParams p)
{
    const Sequence s = sequence_of(p.problem, blockIdx.z);
    const int head = blockIdx.y;
    const int row = blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP;
    const int lane = threadIdx.x % WARP;
    if (row >= s.q_length)  // the whole warp leaves: no shuffle waits for it
        return;
    const Scalar* out = row_of(p.out, s.batch, s.q_start, row, head);
    const Scalar* dout = row_of(p.dout, s.batch, s.q_start, row, head);
    float sum = 0.0f;
    for (int c = lane; c < p.problem.head_dim_v; c += WARP)
        sum += to_float(out[c * p.out.dim]) * to_float(dout[c * p.dout.dim]);
    sum = warp_sum(sum);
    if (lane != 0)
        return;
    if (p.dlse.data)
        sum -= *value_of(p.dlse, s.batch, s.q_start, row, head);
    *value_of(p.delta, s.batch, s.q_start, row, head) = sum;
}

// One thread's share of the rows of one sequence.
__device__ __forceinline__ float sink_share(const BackwardParams& p, const Sequence& s, int head, float sink)
{
    float sum = 0.0f;
    for (int row = threadIdx.x; row < s.q_length; row += THREADS) {
        const float lse = *value_of(p.lse, s.batch, s.q_start, row, head);
        if (lse != -infinity())
            sum -= expf(sink - lse) * *value_of(p.delta, s.batch, s.q_start, row, head);
    }
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS) backward_sink(BackwardParams p)
{
    DYN_SMEM(shared);
    float* partial = reinterpret_cast<float*>(shared);
    const int head = blockIdx.x;
    const float sink = sink_of(p.problem, head);
    float sum = 0.0f;
    for (int batch = 0; batch < p.problem.batch; ++batch)
        sum += sink_share(p, sequence_of(p.problem, batch), head, sink);
    partial[threadIdx.x] = sum;
    for (int step = THREADS / 2; step > 0; step /= 2) {
        __syncthreads();  // read after write: partial sums of the other half
        if (static_cast<int>(threadIdx.x) < step)
            partial[threadIdx.x] += partial[threadIdx.x + step];
    }
    if (threadIdx.x == 0)
        store_mixed(p.dsink, head * p.dsink_head, p.problem.sink_is_fp32, partial[0]);
}
