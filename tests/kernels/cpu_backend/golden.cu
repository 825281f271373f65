// One kernel for each warp-level instruction whose result is recorded on a GPU and compared bit for bit on the CPU.
//
// Every kernel: golden_NAME(const unsigned* in, unsigned* out), one warp a block. Lane l of block b reads the words from
// in[(b * 32 + l) * IN] and writes those from out[(b * 32 + l) * OUT]; benchmarks/golden_vectors.py makes the inputs.
// Dynamic shared memory: 1024 bytes.
#include "ptx.cuh"

__device__ __forceinline__ size_t lane_index() { return blockIdx.x * 32u + threadIdx.x; }

// in: 8 words that fill shared memory, then the row address of this lane.
#define LDMATRIX_KERNEL(NAME, COUNT)                                              \
    extern "C" __global__ void golden_##NAME(const unsigned* in, unsigned* out)            \
    {                                                                             \
        DYN_SMEM(raw);                                                            \
        const unsigned* mine = in + lane_index() * 9;                             \
        for (int i = 0; i < 8; ++i)                                               \
            ((unsigned*)raw)[threadIdx.x * 8 + i] = mine[i];                      \
        __syncwarp();                                                             \
        unsigned r[COUNT];                                                        \
        NAME(r, shared_address(raw) + mine[8]);                                   \
        for (int i = 0; i < COUNT; ++i)                                           \
            out[lane_index() * COUNT + i] = r[i];                                 \
    }
LDMATRIX_KERNEL(ldmatrix_x1, 1)
LDMATRIX_KERNEL(ldmatrix_x2, 2)
LDMATRIX_KERNEL(ldmatrix_x4, 4)
LDMATRIX_KERNEL(ldmatrix_x1_trans, 1)
LDMATRIX_KERNEL(ldmatrix_x2_trans, 2)
LDMATRIX_KERNEL(ldmatrix_x4_trans, 4)

// in: a (4 words), b (2), c (4); out: d (4)
#define MMA_KERNEL(NAME, MMA)                                                     \
    extern "C" __global__ void golden_##NAME(const unsigned* in, unsigned* out)            \
    {                                                                             \
        const unsigned* mine = in + lane_index() * 10;                            \
        const unsigned a[4] = {mine[0], mine[1], mine[2], mine[3]};               \
        const unsigned b[2] = {mine[4], mine[5]};                                 \
        float d[4];                                                               \
        for (int i = 0; i < 4; ++i)                                               \
            d[i] = __uint_as_float(mine[6 + i]);                                  \
        MMA(d, a, b);                                                             \
        for (int i = 0; i < 4; ++i)                                               \
            out[lane_index() * 4 + i] = __float_as_uint(d[i]);                    \
    }
MMA_KERNEL(mma_fp16, mma_m16n8k16<__half>)
MMA_KERNEL(mma_bf16, mma_m16n8k16<__nv_bfloat16>)
MMA_KERNEL(mma_tf32, mma_m16n8k8_tf32)

// in: value, lane operand; out: idx, up, down, xor for widths 1, 2, 4, 8, 16, 32
extern "C" __global__ void golden_shuffles(const unsigned* in, unsigned* out)
{
    const unsigned value = in[lane_index() * 2], operand = in[lane_index() * 2 + 1];
    unsigned* mine = out + lane_index() * 24;
    for (int i = 0; i < 6; ++i) {
        const int width = 1 << i;
        mine[4 * i] = __shfl_sync(0xffffffffu, value, (int)operand, width);
        mine[4 * i + 1] = __shfl_up_sync(0xffffffffu, value, operand, width);
        mine[4 * i + 2] = __shfl_down_sync(0xffffffffu, value, operand, width);
        mine[4 * i + 3] = __shfl_xor_sync(0xffffffffu, value, (int)operand, width);
    }
}

// in: value; out: ballot, any, all, match, then sum, minimum, maximum (unsigned), and, or, xor
extern "C" __global__ void golden_votes(const unsigned* in, unsigned* out)
{
    const unsigned full = 0xffffffffu, value = in[lane_index()];
    unsigned* mine = out + lane_index() * 10;
    mine[0] = __ballot_sync(full, value & 1u);
    mine[1] = __any_sync(full, value == 3u);
    mine[2] = __all_sync(full, value < 4u);
    mine[3] = __match_any_sync(full, value);
    mine[4] = __reduce_add_sync(full, value);
    mine[5] = __reduce_min_sync(full, value);
    mine[6] = __reduce_max_sync(full, value);
    mine[7] = __reduce_and_sync(full, value);
    mine[8] = __reduce_or_sync(full, value);
    mine[9] = __reduce_xor_sync(full, value);
}

// in: x (fp32); out: ex2.approx.ftz(x)
extern "C" __global__ void golden_exp2_sweep(const unsigned* in, unsigned* out)
{
    out[lane_index()] = __float_as_uint(exp2_approx(__uint_as_float(in[lane_index()])));
}

// in: a, b, c as 16-bit patterns; out: a*b + c rounded once, in fp16 and in bf16
extern "C" __global__ void golden_fma_16_bit(const unsigned* in, unsigned* out)
{
    const unsigned* mine = in + lane_index() * 3;
    __half h[3];
    __nv_bfloat16 b[3];
    for (int i = 0; i < 3; ++i) {
        h[i] = __ushort_as_half((unsigned short)mine[i]);
        b[i] = __ushort_as_bfloat16((unsigned short)mine[i]);
    }
    out[lane_index() * 2] = __half_as_ushort(__hfma(h[0], h[1], h[2]));
    out[lane_index() * 2 + 1] = __bfloat16_as_ushort(__hfma(b[0], b[1], b[2]));
}

// in: x (fp32 bits); out: x rounded to fp16 and to bf16
extern "C" __global__ void golden_round_to_16_bit(const unsigned* in, unsigned* out)
{
    const float x = __uint_as_float(in[lane_index()]);
    out[lane_index() * 2] = __half_as_ushort(__float2half_rn(x));
    out[lane_index() * 2 + 1] = __bfloat16_as_ushort(__float2bfloat16_rn(x));
}
