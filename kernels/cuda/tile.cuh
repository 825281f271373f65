// Building blocks of the tiled version: geometry of a tile, loads into shared memory, and the two small products.
//
// Macros: TILE_Q, TILE_K (rows and columns of a score tile), HEAD_DIM_BUCKET (head dims padded up to it), THREADS.
// The threads form a grid THREADS_Y x THREADS_X; thread (y, x) owns rows y + i * THREADS_Y and columns
// x + j * THREADS_X. The THREADS_X threads of one row are neighbours in one warp.
//
// Shared rows are padded by one float: rows r and r + 1 then start in different banks (32 banks of 4 bytes), so reading
// one column of several rows is free of conflicts.
#pragma once

#include "pairs.cuh"

#if !defined(TILE_Q) || !defined(TILE_K) || !defined(HEAD_DIM_BUCKET) || !defined(THREADS)
#error "TILE_Q, TILE_K, HEAD_DIM_BUCKET and THREADS must be defined"
#endif

constexpr int THREADS_X = TILE_K < 16 ? TILE_K : 16;
constexpr int THREADS_Y = THREADS / THREADS_X;
constexpr int MY_ROWS = TILE_Q / THREADS_Y;            // score rows of a thread
constexpr int MY_COLS = TILE_K / THREADS_X;            // score columns of a thread
constexpr int MY_KEYS = TILE_K / THREADS_Y;            // rows of a thread in dK and dV
constexpr int MY_DIMS = HEAD_DIM_BUCKET / THREADS_X;   // columns of a thread in O, dQ, dK and dV
constexpr int DIM_PITCH = HEAD_DIM_BUCKET + 1;
constexpr int KEY_PITCH = TILE_K + 1;

static_assert(WARP % THREADS_X == 0, "the threads of one row must lie in one warp");
static_assert(THREADS % WARP == 0 && TILE_Q % THREADS_Y == 0 && TILE_K % THREADS_Y == 0, "whole warps, whole rows");
static_assert(HEAD_DIM_BUCKET % THREADS_X == 0, "HEAD_DIM_BUCKET must be a multiple of THREADS_X");
static_assert(MY_ROWS * MY_COLS <= 32, "a thread holds its scores in registers");

struct Place {  // of a thread in the thread grid
    int x, y;
};

__device__ __forceinline__ Place my_place()
{
    return {static_cast<int>(threadIdx.x) % THREADS_X, static_cast<int>(threadIdx.x) / THREADS_X};
}

// Rows [first, end) of one head into a shared tile of ROWS rows; rows from end on and dims from `dims` on become zero.
template <int ROWS>
__device__ __forceinline__ void load_tile(float* tile, const TensorView& t, int batch, int start, int head,
                                          int first, int end, int dims)
{
    for (int at = threadIdx.x; at < ROWS * HEAD_DIM_BUCKET; at += THREADS) {
        const int row = at / HEAD_DIM_BUCKET;
        const int dim = at % HEAD_DIM_BUCKET;
        float x = 0.0f;
        if (first + row < end && dim < dims)
            x = to_float(row_of(t, batch, start, first + row, head)[dim * t.dim]);
        tile[row * DIM_PITCH + dim] = x;
    }
}

// One value a query row (lse, delta); rows from end on become zero.
__device__ __forceinline__ void load_rows(float* tile, const RowView& t, int batch, int start, int head,
                                          int first, int end)
{
    for (int row = threadIdx.x; row < TILE_Q; row += THREADS)
        tile[row] = first + row < end ? *value_of(t, batch, start, first + row, head) : 0.0f;
}

// products[row][col] = sum_d a[row][d] * b[col][d], d ascending; a thread writes the pairs that it owns.
__device__ __forceinline__ void dot_rows(float* products, const float* a, const float* b, int dims, Place me)
{
    float sum[MY_ROWS][MY_COLS] = {};
    for (int d = 0; d < dims; ++d) {
        float column[MY_COLS];
#pragma unroll
        for (int j = 0; j < MY_COLS; ++j)
            column[j] = b[(me.x + j * THREADS_X) * DIM_PITCH + d];
#pragma unroll
        for (int i = 0; i < MY_ROWS; ++i) {
            const float x = a[(me.y + i * THREADS_Y) * DIM_PITCH + d];
#pragma unroll
            for (int j = 0; j < MY_COLS; ++j)
                sum[i][j] += x * column[j];
        }
    }
#pragma unroll
    for (int i = 0; i < MY_ROWS; ++i)
#pragma unroll
        for (int j = 0; j < MY_COLS; ++j)
            products[(me.y + i * THREADS_Y) * KEY_PITCH + me.x + j * THREADS_X] = sum[i][j];
}

// visit(row, col, index in a score tile) for each pair that this thread owns. Not unrolled on purpose: masks, bias,
// softcap and dropout would be repeated for every pair, which costs instruction cache and seconds of compile time.
template <class Visit>
__device__ __forceinline__ void for_own_pairs(Place me, Visit visit)
{
#pragma unroll 1
    for (int row = me.y; row < TILE_Q; row += THREADS_Y)
#pragma unroll 1
        for (int col = me.x; col < TILE_K; col += THREADS_X)
            visit(row, col, row * KEY_PITCH + col);
}

// sum[i][c] += sum_t weights[row i, term t] * terms[t][c], t ascending, hidden weights skipped.
// The weight of (row, term) lies at row * ROW_STEP + term * TERM_STEP, so one function serves P V and P^T dO.
template <int ROWS, int ROW_STEP, int TERM_STEP>
__device__ __forceinline__ void add_product(float (&sum)[ROWS][MY_DIMS], const float* weights, const float* terms,
                                            int count, Place me)
{
    for (int t = 0; t < count; ++t) {
        float term[MY_DIMS];
#pragma unroll
        for (int c = 0; c < MY_DIMS; ++c)
            term[c] = terms[t * DIM_PITCH + me.x + c * THREADS_X];
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            const float weight = weights[(me.y + i * THREADS_Y) * ROW_STEP + t * TERM_STEP];
            if (is_hidden(weight))
                continue;
#pragma unroll
            for (int c = 0; c < MY_DIMS; ++c)
                sum[i][c] += weight * term[c];
        }
    }
}

// Rows [first, end) of one head leave as factor * sum.
template <int ROWS>
__device__ __forceinline__ void store_rows(const TensorView& t, const float (&sum)[ROWS][MY_DIMS], float factor,
                                           int batch, int start, int head, int first, int end, int dims, Place me)
{
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        const int row = first + me.y + i * THREADS_Y;
        if (row >= end)
            continue;
        Scalar* to = row_of(t, batch, start, row, head);
#pragma unroll
        for (int c = 0; c < MY_DIMS; ++c) {
            const int dim = me.x + c * THREADS_X;
            if (dim < dims)
                store(to + dim * t.dim, factor * sum[i][c]);
        }
    }
}

// Over the THREADS_X threads that share a row; every one of them gets the result.
__device__ __forceinline__ float row_sum(float x)
{
#pragma unroll
    for (int step = THREADS_X / 2; step > 0; step /= 2)
        x += __shfl_xor_sync(FULL_WARP, x, step);
    return x;
}

__device__ __forceinline__ float row_max(float x)
{
#pragma unroll
    for (int step = THREADS_X / 2; step > 0; step /= 2)
        x = fmaxf(x, __shfl_xor_sync(FULL_WARP, x, step));
    return x;
}

// Whether the block mask hides every pair of rows [row, row + TILE_Q) and columns [col, col + TILE_K): such a tile is
// not loaded. The answer is the same in all threads.
__device__ __forceinline__ bool block_mask_hides(const Problem& p, const Sequence& s, int head, int row, int col)
{
    if (!p.block_mask.data)
        return false;
    const int end_row = min(row + TILE_Q, s.q_length);
    const int end_col = min(col + TILE_K, s.k_length);
    for (int i = row / p.block_rows; i * p.block_rows < end_row; ++i)
        for (int j = col / p.block_cols; j * p.block_cols < end_col; ++j)
            if (mask_keeps(p.block_mask, s.batch, head, i, j))
                return false;
    return true;
}

// Tiles whose every pair lies outside of the band are never visited: loops run over [first tile, end).
__device__ __forceinline__ int first_key_tile(const Problem& p, const Sequence& s, int row)
{
    return first_key(p, s, row) / TILE_K * TILE_K;
}

__device__ __forceinline__ int end_key_tile(const Problem& p, const Sequence& s, int row)
{
    return row < s.q_length ? end_key(p, s, min(row + TILE_Q, s.q_length) - 1) : 0;
}

__device__ __forceinline__ int first_query_tile(const Problem& p, const Sequence& s, int col)
{
    return first_query(p, s, col) / TILE_Q * TILE_Q;
}

__device__ __forceinline__ int end_query_tile(const Problem& p, const Sequence& s, int col)
{
    return col < s.k_length ? end_query(p, s, min(col + TILE_K, s.k_length) - 1) : 0;
}
