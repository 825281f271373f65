// Reads the dropout mask back: keep[b,h,i,j] = 1 where the pair is kept, 0 where it is dropped.
//
// Geometry: grid (ceil(seqlen_q * seqlen_k / THREADS), nheads, batch), one thread a pair; no shared memory.
// Macros: THREADS.
#include "ptx.cuh"
#include "params.cuh"
#include "philox.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) dropout_mask(DropoutMaskParams p)
{
    const long long at = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
    if (at >= static_cast<long long>(p.seqlen_q) * p.seqlen_k)
        return;
    const int row = static_cast<int>(at / p.seqlen_k);
    const int col = static_cast<int>(at % p.seqlen_k);
    const unsigned int draw = dropout_draw(p.seed_low, p.seed_high, p.dropout_offset,
                                           blockIdx.z * p.nheads + blockIdx.y, row, col);
    unsigned char* keep = static_cast<unsigned char*>(p.keep.data);
    keep[blockIdx.z * p.keep.batch + blockIdx.y * p.keep.head + row * p.keep.row + col * p.keep.col] =
        draw >= p.drop_below;
}
