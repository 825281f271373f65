// Version B: attention by tiles. S and P live on chip only; softmax is computed online, so memory is linear in seqlen.
//
// q, out, dO, dQ   (batch, seqlen_q, nheads,    head_dim | head_dim_v)   any strides, storage type
// k, v, dK, dV     (batch, seqlen_k, nheads_kv, head_dim | head_dim_v)
// lse, delta       (batch, nheads, seqlen_q)                             fp32
//
// entry            grid                                          loops over        shared floats
// tiled_forward    (query tiles, nheads, batch)                  key tiles         (q + 2k) D + S
// tiled_dq         (query tiles, nheads, batch)                  key tiles         (2q + 2k) D + 2S + 2q
// tiled_dkdv       (key tiles, nheads_kv, batch)                 heads, q tiles    (2q + 2k) D + 2S + 2q
// tiled_dbias      (key tiles | 1, query tiles | 1, bias slices) broadcast axes    (2q + 2k) D + 3S + 2q
//     with q = TILE_Q, k = TILE_K, D = HEAD_DIM_BUCKET + 1, S = TILE_Q * (TILE_K + 1); all fp32; THREADS threads
// backward_delta, backward_sink: see row_passes.cuh
//
// 1 One block a query tile; K and V stream through shared memory; each thread sums a register tile of S and of O.
// 2 Online softmax: running row maximum m and sum l; O is rescaled by exp(m_old - m_new) when a tile raises m.
// 3 Tiles outside of the band (causal, window) or empty in the block mask are skipped, not masked.
// 4 The backward recomputes P = exp(S - lse). One block owns a key tile (dK, dV) or a query tile (dQ): a sum has one
//   owner and a fixed order, so there are no atomics and runs repeat bit for bit.
//
// Macros: STORAGE, TILE_Q, TILE_K, HEAD_DIM_BUCKET, THREADS.
#include "row_passes.cuh"
#include "tile.cuh"

// ---------------------------------------------------------------------------------------------------- forward

struct Softmax {  // running state of the rows of a thread; equal in the THREADS_X threads of a row
    float row_max[MY_ROWS];
    float row_sum[MY_ROWS];
    float out[MY_ROWS][MY_DIMS];
};

// The sink is a column that comes first: maximum = sink, sum = exp(sink - sink), value zero.
__device__ __forceinline__ void start_softmax(Softmax& state, float sink)
{
#pragma unroll
    for (int i = 0; i < MY_ROWS; ++i) {
        state.row_max[i] = sink;
        state.row_sum[i] = expf(sink - finite_shift(sink));
#pragma unroll
        for (int c = 0; c < MY_DIMS; ++c)
            state.out[i][c] = 0.0f;
    }
}

// Dot products of this thread's pairs become logits in place; hidden pairs are marked.
__device__ __forceinline__ void finish_logits(float* scores, const Problem& p, const Sequence& s, int head, int row0,
                                              int col0, Place me)
{
    for_own_pairs(me, [&](int row, int col, int at) {
        const bool visible = is_visible(p, s, head, row0 + row, col0 + col);
        scores[at] = visible ? logit_of(p, s, head, row0 + row, col0 + col, scores[at]).value : hidden_mark();
    });
}

// One row of logits joins row i of the state: updates m and l, rescales O; logits become exp(logit - m) in place.
__device__ __forceinline__ void update_row(Softmax& state, int i, float* scores, Place me)
{
    float largest = state.row_max[i];
#pragma unroll
    for (int j = 0; j < MY_COLS; ++j) {
        const float logit = scores[me.x + j * THREADS_X];
        if (!is_hidden(logit))
            largest = raised_max(largest, logit);
    }
    largest = row_max(largest);
    const float shift = finite_shift(largest);
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < MY_COLS; ++j) {
        float& score = scores[me.x + j * THREADS_X];
        if (!is_hidden(score)) {
            score = expf(score - shift);
            sum += score;
        }
    }
    const float rescale = expf(state.row_max[i] - shift);
    state.row_sum[i] = state.row_sum[i] * rescale + row_sum(sum);
    state.row_max[i] = largest;
#pragma unroll
    for (int c = 0; c < MY_DIMS; ++c)
        state.out[i][c] *= rescale;
}

// Dropout acts on the weights that meet V, not on their sum l.
__device__ __forceinline__ void drop_weights(float* weights, const Problem& p, const Sequence& s, int head, int row0,
                                             int col0, Place me)
{
    if (p.drop_below == 0)
        return;
    for_own_pairs(me, [&](int row, int col, int at) {
        if (!is_hidden(weights[at]))
            weights[at] *= dropout_factor(p, s.batch, head, row0 + row, col0 + col);
    });
}

// O = sum / l and lse = m + log(l). Padding rows count as rows that saw no key, whatever the sink.
__device__ __forceinline__ void finish_softmax(Softmax& state, const ForwardParams& p, const Sequence& s, int head,
                                               int row0, Place me)
{
#pragma unroll
    for (int i = 0; i < MY_ROWS; ++i) {
        const int row = row0 + me.y + i * THREADS_Y;
        const float sum = row < s.q_length ? state.row_sum[i] : 0.0f;
        const float largest = row < s.q_length ? state.row_max[i] : -infinity();
#pragma unroll
        for (int c = 0; c < MY_DIMS; ++c)
            state.out[i][c] = sum == 0.0f ? weightless_out(largest) : state.out[i][c] / sum;
        if (me.x == 0 && row < s.q_extent)
            *value_of(p.lse, s.batch, s.q_start, row, head) =
                sum == 0.0f ? weightless_lse(largest) : largest + logf(sum);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) tiled_forward(ForwardParams p)
{
    DYN_SMEM(shared);
    float* q_tile = reinterpret_cast<float*>(shared);
    float* k_tile = q_tile + TILE_Q * DIM_PITCH;
    float* v_tile = k_tile + TILE_K * DIM_PITCH;
    float* scores = v_tile + TILE_K * DIM_PITCH;  // S, then Z P; a thread touches its own pairs until the warp barrier

    const Problem& problem = p.problem;
    const Sequence s = sequence_of(problem, blockIdx.z);
    const int head = blockIdx.y;
    const int kv_head = kv_head_of(problem, head);
    const int row0 = blockIdx.x * TILE_Q;
    const Place me = my_place();
    if (row0 >= s.q_extent)  // the whole block leaves: no barrier waits for it
        return;

    load_tile<TILE_Q>(q_tile, problem.q, s.batch, s.q_start, head, row0, s.q_length, problem.head_dim);
    Softmax state;
    start_softmax(state, sink_of(problem, head));
    const int end = end_key_tile(problem, s, row0);
    for (int col0 = first_key_tile(problem, s, row0); col0 < end; col0 += TILE_K) {
        if (block_mask_hides(problem, s, head, row0, col0))
            continue;
        __syncthreads();  // write after read: the last tile of K, V and P is still in use
        load_tile<TILE_K>(k_tile, problem.k, s.batch, s.k_start, kv_head, col0, s.k_length, problem.head_dim);
        load_tile<TILE_K>(v_tile, problem.v, s.batch, s.k_start, kv_head, col0, s.k_length, problem.head_dim_v);
        __syncthreads();  // read after write: Q (first time), K and V
        dot_rows(scores, q_tile, k_tile, problem.head_dim, me);
        finish_logits(scores, problem, s, head, row0, col0, me);
#pragma unroll
        for (int i = 0; i < MY_ROWS; ++i)
            update_row(state, i, scores + (me.y + i * THREADS_Y) * KEY_PITCH, me);
        drop_weights(scores, problem, s, head, row0, col0, me);
        __syncwarp();  // read after write: a row of P is written and read by threads of one warp only
        add_product<MY_ROWS, KEY_PITCH, 1>(state.out, scores, v_tile, min(TILE_K, s.k_length - col0), me);
    }
    finish_softmax(state, p, s, head, row0, me);
    store_rows(p.out, state.out, 1.0f, s.batch, s.q_start, head, row0, s.q_extent, problem.head_dim_v, me);
}

// ---------------------------------------------------------------------------------------------------- backward

struct GradientTiles {  // shared memory of the backward
    float *q, *dout, *k, *v;  // operands
    float *lse, *delta;       // one value a query row
    float *weights;           // S, then Z P; hidden pairs marked
    float *dscores;           // dP, then dS or dlogit; hidden pairs marked
};

__device__ __forceinline__ GradientTiles carve(unsigned char* shared)
{
    GradientTiles t;
    t.q = reinterpret_cast<float*>(shared);
    t.dout = t.q + TILE_Q * DIM_PITCH;
    t.k = t.dout + TILE_Q * DIM_PITCH;
    t.v = t.k + TILE_K * DIM_PITCH;
    t.lse = t.v + TILE_K * DIM_PITCH;
    t.delta = t.lse + TILE_Q;
    t.weights = t.delta + TILE_Q;
    t.dscores = t.weights + TILE_Q * KEY_PITCH;
    return t;
}

__device__ __forceinline__ void load_queries(const GradientTiles& t, const BackwardParams& p, const Sequence& s,
                                             int head, int row0)
{
    const Problem& problem = p.problem;
    load_tile<TILE_Q>(t.q, problem.q, s.batch, s.q_start, head, row0, s.q_length, problem.head_dim);
    load_tile<TILE_Q>(t.dout, p.dout, s.batch, s.q_start, head, row0, s.q_length, problem.head_dim_v);
    load_rows(t.lse, p.lse, s.batch, s.q_start, head, row0, s.q_length);
    load_rows(t.delta, p.delta, s.batch, s.q_start, head, row0, s.q_length);
}

__device__ __forceinline__ void load_keys(const GradientTiles& t, const Problem& p, const Sequence& s, int kv_head,
                                          int col0)
{
    load_tile<TILE_K>(t.k, p.k, s.batch, s.k_start, kv_head, col0, s.k_length, p.head_dim);
    load_tile<TILE_K>(t.v, p.v, s.batch, s.k_start, kv_head, col0, s.k_length, p.head_dim_v);
}

struct PairGradient {
    float weight;  // Z P
    float dlogit;  // P (Z dO.V - delta)
    float dscore;  // dlogit through the softcap
};

__device__ __forceinline__ PairGradient pair_gradient(const Problem& p, const Sequence& s, int head, int row, int col,
                                                      float dot, float dprob, float lse, float delta)
{
    if (!is_visible(p, s, head, row, col))
        return {hidden_mark(), hidden_mark(), hidden_mark()};
    const Logit logit = logit_of(p, s, head, row, col, dot);
    const float prob = expf(logit.value - lse);
    const float factor = dropout_factor(p, s.batch, head, row, col);
    const float dlogit = prob * (factor * dprob - delta);
    return {prob * factor, dlogit, dlogit * logit.slope};
}

// S and dP of one pair of tiles, then visit(index in a score tile, gradient) for each pair of this thread.
template <class Visit>
__device__ __forceinline__ void for_each_gradient(const GradientTiles& t, const Problem& p, const Sequence& s, int head,
                                                  int row0, int col0, Place me, Visit visit)
{
    dot_rows(t.weights, t.q, t.k, p.head_dim, me);
    dot_rows(t.dscores, t.dout, t.v, p.head_dim_v, me);
    for_own_pairs(me, [&](int row, int col, int at) {
        visit(at, pair_gradient(p, s, head, row0 + row, col0 + col, t.weights[at], t.dscores[at], t.lse[row],
                                t.delta[row]));
    });
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) tiled_dq(BackwardParams p)
{
    DYN_SMEM(shared);
    const GradientTiles t = carve(shared);
    const Problem& problem = p.problem;
    const Sequence s = sequence_of(problem, blockIdx.z);
    const int head = blockIdx.y;
    const int row0 = blockIdx.x * TILE_Q;
    const Place me = my_place();
    if (row0 >= s.q_extent)  // the whole block leaves: no barrier waits for it
        return;

    load_queries(t, p, s, head, row0);
    float dq[MY_ROWS][MY_DIMS] = {};
    const int end = end_key_tile(problem, s, row0);
    for (int col0 = first_key_tile(problem, s, row0); col0 < end; col0 += TILE_K) {
        if (block_mask_hides(problem, s, head, row0, col0))
            continue;
        __syncthreads();  // write after read: the last tile of K, V and dS is still in use
        load_keys(t, problem, s, kv_head_of(problem, head), col0);
        __syncthreads();  // read after write: Q, dO, lse, delta (first time), K and V
        for_each_gradient(t, problem, s, head, row0, col0, me,
                          [&](int at, const PairGradient& g) { t.dscores[at] = g.dscore; });
        __syncwarp();  // read after write: a row of dS is written and read by threads of one warp only
        add_product<MY_ROWS, KEY_PITCH, 1>(dq, t.dscores, t.k, min(TILE_K, s.k_length - col0), me);
    }
    store_rows(p.dq, dq, problem.softmax_scale, s.batch, s.q_start, head, row0, s.q_extent, problem.head_dim, me);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) tiled_dkdv(BackwardParams p)
{
    DYN_SMEM(shared);
    const GradientTiles t = carve(shared);
    const Problem& problem = p.problem;
    const Sequence s = sequence_of(problem, blockIdx.z);
    const int kv_head = blockIdx.y;
    const int group = problem.nheads / problem.nheads_kv;
    const int col0 = blockIdx.x * TILE_K;
    const Place me = my_place();
    if (col0 >= s.k_extent)  // the whole block leaves: no barrier waits for it
        return;

    load_keys(t, problem, s, kv_head, col0);
    float dk[MY_KEYS][MY_DIMS] = {};
    float dv[MY_KEYS][MY_DIMS] = {};
    const int end = end_query_tile(problem, s, col0);
    for (int head = kv_head * group; head < (kv_head + 1) * group; ++head)
        for (int row0 = first_query_tile(problem, s, col0); row0 < end; row0 += TILE_Q) {
            if (block_mask_hides(problem, s, head, row0, col0))
                continue;
            __syncthreads();  // write after read: the last tile of Q, dO, P and dS is still in use
            load_queries(t, p, s, head, row0);
            __syncthreads();  // read after write: K, V (first time), Q, dO, lse and delta
            for_each_gradient(t, problem, s, head, row0, col0, me, [&](int at, const PairGradient& g) {
                t.weights[at] = g.weight;
                t.dscores[at] = g.dscore;
            });
            __syncthreads();  // read after write: a column of P and dS comes from threads of every warp
            const int rows = min(TILE_Q, s.q_length - row0);
            add_product<MY_KEYS, 1, KEY_PITCH>(dv, t.weights, t.dout, rows, me);
            add_product<MY_KEYS, 1, KEY_PITCH>(dk, t.dscores, t.q, rows, me);
        }
    store_rows(p.dk, dk, problem.softmax_scale, s.batch, s.k_start, kv_head, col0, s.k_extent, problem.head_dim, me);
    store_rows(p.dv, dv, 1.0f, s.batch, s.k_start, kv_head, col0, s.k_extent, problem.head_dim_v, me);
}

// One sequence and head of a tile of dbias, added to `sum`. An axis of size 1 in the bias is walked over and summed.
__device__ __forceinline__ void add_dlogits(float* sum, const GradientTiles& t, const BackwardParams& p,
                                            const Sequence& s, int head, Place me)
{
    const int first_row = blockIdx.y * TILE_Q;
    const int first_col = blockIdx.x * TILE_K;
    const int end_row = p.bias_rows == 1 ? s.q_length : min(first_row + 1, s.q_length);
    const int end_col = p.bias_cols == 1 ? s.k_length : min(first_col + 1, s.k_length);
    for (int row0 = first_row; row0 < end_row; row0 += TILE_Q)
        for (int col0 = first_col; col0 < end_col; col0 += TILE_K) {
            if (block_mask_hides(p.problem, s, head, row0, col0))
                continue;
            __syncthreads();  // write after read: the last tiles are still in use
            load_queries(t, p, s, head, row0);
            load_keys(t, p.problem, s, kv_head_of(p.problem, head), col0);
            __syncthreads();  // read after write: all operands
            for_each_gradient(t, p.problem, s, head, row0, col0, me, [&](int at, const PairGradient& g) {
                if (!is_hidden(g.dlogit))
                    sum[at] += g.dlogit;
            });
        }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) tiled_dbias(BackwardParams p)
{
    DYN_SMEM(shared);
    const GradientTiles t = carve(shared);
    const Problem& problem = p.problem;
    const Place me = my_place();
    const int bias_head = blockIdx.z % p.bias_heads;
    const int bias_batch = blockIdx.z / p.bias_heads;
    const int end_batch = p.bias_batch == 1 ? problem.batch : bias_batch + 1;
    const int end_head = p.bias_heads == 1 ? problem.nheads : bias_head + 1;
    float* sum = t.dscores + TILE_Q * KEY_PITCH;
    for_own_pairs(me, [&](int, int, int at) { sum[at] = 0.0f; });
    for (int batch = bias_batch; batch < end_batch; ++batch)
        for (int head = bias_head; head < end_head; ++head)
            add_dlogits(sum, t, p, sequence_of(problem, batch), head, me);

    __syncthreads();  // read after write: a thread sums over rows and columns of others
    const int row0 = blockIdx.y * TILE_Q;
    const int col0 = blockIdx.x * TILE_K;
    const int rows = min(TILE_Q, p.bias_rows - row0);  // rows and columns of this tile in the bias
    const int cols = min(TILE_K, p.bias_cols - col0);
    const int span_rows = p.bias_rows == 1 ? TILE_Q : 1;
    const int span_cols = p.bias_cols == 1 ? TILE_K : 1;
    for (int at = threadIdx.x; at < rows * cols; at += THREADS) {
        const int row = at / cols;
        const int col = at % cols;
        float total = 0.0f;
        for (int i = row; i < row + span_rows; ++i)
            for (int j = col; j < col + span_cols; ++j)
                total += sum[i * KEY_PITCH + j];
        const PairView& d = p.dbias;
        store_mixed(d.data, bias_batch * d.batch + bias_head * d.head + (row0 + row) * d.row + (col0 + col) * d.col,
                    problem.bias_is_fp32, total);
    }
}
