// out = (Q K^T) K by tiles, and the sum of all of out: the smallest kernel with every hazard of a tiled attention kernel.
//
// q (rows, DIM), k (keys, DIM) half, const; out (rows, DIM) float; total (1) float, zero before the launch.
// Grid: (ceil(rows / 64), 1, 1), block: 128 threads, two for each row of q. Shared memory: see SHARED_BYTES in the tests.
// Lines that a test breaks or expects a fault at end in a label, `// @name`.
#include "ptx.cuh"

#define DIM 32
#define ROWS 64
#define KEYS 32
#define THREADS 128

struct Product {
    const __half* q;
    const __half* k;
    float* out;
    float* total;
    int rows, keys;
};

__device__ __forceinline__ void copy_tile(unsigned tile, const __half* k, int first, int keys)
{
    for (int i = threadIdx.x; i < KEYS * DIM / 8; i += THREADS) {
        const int row = first + i / (DIM / 8), chunk = i % (DIM / 8);
        const bool inside = row < keys;  // @tail
        cp_async<16>(tile + i * 16, k + (inside ? row : 0) * DIM + chunk * 8, inside);  // @copy
    }
    cp_async_commit();
}

extern "C" __global__ void tile_product(Product p)
{
    DYN_SMEM(raw);
    __half* tiles = (__half*)raw;                              // two of KEYS x DIM
    float* products = (float*)(tiles + 2 * KEYS * DIM);        // ROWS x KEYS
    const int row = threadIdx.x / 2, half = threadIdx.x % 2, global_row = blockIdx.x * ROWS + row;
    const bool valid = global_row < p.rows;

    float q[DIM], accumulator[DIM / 2];
    for (int i = 0; i < DIM; i += 8) {
        uint4 packed = make_uint4(0, 0, 0, 0);
        if (valid)
            packed = *(const uint4*)(p.q + global_row * DIM + i);  // @load_q
        const __half2* pairs = (const __half2*)&packed;
        for (int j = 0; j < 4; ++j) {
            q[i + 2 * j] = __low2float(pairs[j]);
            q[i + 2 * j + 1] = __high2float(pairs[j]);
        }
    }
    for (int i = 0; i < DIM / 2; ++i)
        accumulator[i] = 0.0f;  // @clear

    const int tile_count = (p.keys + KEYS - 1) / KEYS;
    copy_tile(shared_address(tiles), p.k, 0, p.keys);
    // @before_loop
    for (int t = 0; t < tile_count; ++t) {
        const __half* tile = tiles + t % 2 * KEYS * DIM;
        if (t + 1 < tile_count)
            copy_tile(shared_address(tiles + (t + 1) % 2 * KEYS * DIM), p.k, (t + 1) * KEYS, p.keys);
        else
            cp_async_commit();
        cp_async_wait<1>();  // @wait
        __syncthreads();  // @ready
        for (int j = half * KEYS / 2; j < (half + 1) * KEYS / 2; ++j) {
            float sum = 0.0f;
            for (int i = 0; i < DIM; ++i)
                sum += q[i] * __half2float(tile[j * DIM + i]);  // @dot
            products[row * KEYS + j] = sum;  // @store_product
        }
        __syncwarp();  // @paired
        for (int j = 0; j < KEYS; ++j)
            for (int i = 0; i < DIM / 2; ++i)
                accumulator[i] += products[row * KEYS + j] * __half2float(tile[j * DIM + half * DIM / 2 + i]);  // @accumulate
        __syncthreads();  // @reuse
    }

    float sum = 0.0f;
    for (int i = 0; i < DIM / 2; ++i) {
        sum += accumulator[i];
        if (valid)
            p.out[global_row * DIM + half * DIM / 2 + i] = accumulator[i];  // @store
    }
    for (int lanes = 16; lanes > 0; lanes /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
    if (threadIdx.x % 32 == 0)
        atomicAdd(p.total, sum);  // @total
}
