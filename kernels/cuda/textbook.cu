// Version A: attention as the formulas stand. S, P, dP and dS are full matrices in device memory, one pass each.
//
// q, out, dO, dQ   (batch, seqlen_q, nheads,    head_dim | head_dim_v)   any strides, storage type
// k, v, dK, dV     (batch, seqlen_k, nheads_kv, head_dim | head_dim_v)
// S, P, dP, dS     (batch, nheads, seqlen_q, seqlen_k)                   fp32 workspaces, contiguous
// lse, delta       (batch, nheads, seqlen_q)                             fp32
//
// forward                                      backward
//   1 forward_scores   S = logits of QK^T        1 backward_scores  S, as in the forward
//   2 forward_softmax  P, lse                    2 backward_probs   P = exp(S - lse)
//   3 forward_values   O = (Z P) V               3 backward_delta   delta = rowsum(dO O) - dlse
//                                                4 backward_dprobs  dP = Z (dO V^T)
//  Z: dropout factors.                           5 backward_dscores dS = P (dP - delta), through the softcap
//                                                6 backward_dq, _dk, _dv, _dbias, _dsink
//
// Geometry: grid (ceil(elements of one head / THREADS), heads, batch), one thread an element, with these exceptions:
// forward_softmax and backward_delta take one warp a row, backward_sink one block a head (THREADS floats shared).
// Macros: STORAGE, THREADS. Every sum is one thread's fp32 chain in ascending index order: deterministic.
#ifndef THREADS
#error "THREADS must be a power of two, at least 32"
#endif

#include "row_passes.cuh"

struct Element {  // a thread's place in the row-major (rows, cols) matrix of one head
    int row, col;
    bool inside;
};

__device__ __forceinline__ Element my_element(int rows, int cols)
{
    const long long at = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
    const bool inside = at < static_cast<long long>(rows) * cols;
    return {inside ? static_cast<int>(at / cols) : 0, inside ? static_cast<int>(at % cols) : 0, inside};
}

__device__ __forceinline__ long long pair_index(const Problem& p, int batch, int head, int row, int col)
{
    return ((static_cast<long long>(batch) * p.nheads + head) * p.seqlen_q + row) * p.seqlen_k + col;
}

__device__ __forceinline__ float dot(const Scalar* a, long long step_a, const Scalar* b, long long step_b, int length)
{
    float sum = 0.0f;
    for (int c = 0; c < length; ++c)
        sum += to_float(a[c * step_a]) * to_float(b[c * step_b]);
    return sum;
}

__device__ __forceinline__ float query_dot_key(const Problem& p, const Sequence& s, int head, int row, int col)
{
    const Scalar* q = row_of(p.q, s.batch, s.q_start, row, head);
    const Scalar* k = row_of(p.k, s.batch, s.k_start, col, kv_head_of(p, head));
    return dot(q, p.q.dim, k, p.k.dim, p.head_dim);
}

__device__ __forceinline__ void write_scores(const Problem& p, float* scores)
{
    const Sequence s = sequence_of(p, blockIdx.z);
    const int head = blockIdx.y;
    const Element e = my_element(p.seqlen_q, p.seqlen_k);
    if (!e.inside)
        return;
    float score = hidden_mark();
    if (is_visible(p, s, head, e.row, e.col))
        score = logit_of(p, s, head, e.row, e.col, query_dot_key(p, s, head, e.row, e.col)).value;
    scores[pair_index(p, s.batch, head, e.row, e.col)] = score;
}

// ---------------------------------------------------------------------------------------------------- forward

extern "C" __global__ void __launch_bounds__(THREADS) forward_scores(ForwardParams p)
{
    write_scores(p.problem, p.scores);
}

// Row maximum over the visible keys and the sink; -inf if there is neither.
__device__ __forceinline__ float row_max(const float* scores, int cols, int lane, float sink)
{
    float largest = sink;
    for (int col = lane; col < cols; col += WARP)
        if (!is_hidden(scores[col]))
            largest = raised_max(largest, scores[col]);
    return warp_max(largest);
}

extern "C" __global__ void __launch_bounds__(THREADS) forward_softmax(ForwardParams p)
{
    const Sequence s = sequence_of(p.problem, blockIdx.z);
    const int head = blockIdx.y;
    const int row = blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP;
    const int lane = threadIdx.x % WARP;
    if (row >= s.q_extent)  // the whole warp leaves: no shuffle waits for it
        return;
    const long long first = pair_index(p.problem, s.batch, head, row, 0);
    const float sink = row < s.q_length ? sink_of(p.problem, head) : -infinity();
    const float largest = row_max(p.scores + first, p.problem.seqlen_k, lane, sink);
    const float shift = finite_shift(largest);
    float sum = 0.0f;
    for (int col = lane; col < p.problem.seqlen_k; col += WARP) {
        const float score = p.scores[first + col];
        const float weight = is_hidden(score) ? score : expf(score - shift);
        p.probs[first + col] = weight;
        sum += is_hidden(score) ? 0.0f : weight;
    }
    sum = warp_sum(sum) + expf(sink - shift);
    for (int col = lane; col < p.problem.seqlen_k; col += WARP) {  // each lane reads back what it wrote: no barrier
        const float weight = p.probs[first + col];
        if (!is_hidden(weight))
            p.probs[first + col] = sum == 0.0f ? weightless_out(largest) : weight / sum;
    }
    if (lane == 0)
        *value_of(p.lse, s.batch, s.q_start, row, head) =
            sum == 0.0f ? weightless_lse(largest) : shift + logf(sum);
}

extern "C" __global__ void __launch_bounds__(THREADS) forward_values(ForwardParams p)
{
    const Problem& problem = p.problem;
    const Sequence s = sequence_of(problem, blockIdx.z);
    const int head = blockIdx.y;
    const Element e = my_element(s.q_extent, problem.head_dim_v);
    if (!e.inside)
        return;
    const long long first = pair_index(problem, s.batch, head, e.row, 0);
    const Scalar* v = row_of(problem.v, s.batch, s.k_start, 0, kv_head_of(problem, head)) + e.col * problem.v.dim;
    float sum = 0.0f;
    for (int key = 0; key < s.k_length; ++key) {
        const float prob = p.probs[first + key];
        if (!is_hidden(prob))
            sum += prob * dropout_factor(problem, s.batch, head, e.row, key) * to_float(v[key * problem.v.seq]);
    }
    store(row_of(p.out, s.batch, s.q_start, e.row, head) + e.col * p.out.dim, sum);
}

// ---------------------------------------------------------------------------------------------------- backward

extern "C" __global__ void __launch_bounds__(THREADS) backward_scores(BackwardParams p)
{
    write_scores(p.problem, p.scores);
}

extern "C" __global__ void __launch_bounds__(THREADS) backward_probs(BackwardParams p)
{
    const Sequence s = sequence_of(p.problem, blockIdx.z);
    const int head = blockIdx.y;
    const Element e = my_element(s.q_length, p.problem.seqlen_k);
    if (!e.inside)
        return;
    const long long at = pair_index(p.problem, s.batch, head, e.row, e.col);
    const float score = p.scores[at];
    const float lse = *value_of(p.lse, s.batch, s.q_start, e.row, head);
    p.probs[at] = is_hidden(score) ? score : expf(score - lse);
}

extern "C" __global__ void __launch_bounds__(THREADS) backward_dprobs(BackwardParams p)
{
    const Problem& problem = p.problem;
    const Sequence s = sequence_of(problem, blockIdx.z);
    const int head = blockIdx.y;
    const Element e = my_element(s.q_length, problem.seqlen_k);
    if (!e.inside)
        return;
    const long long at = pair_index(problem, s.batch, head, e.row, e.col);
    if (is_hidden(p.probs[at]))
        return;
    const Scalar* dout = row_of(p.dout, s.batch, s.q_start, e.row, head);
    const Scalar* v = row_of(problem.v, s.batch, s.k_start, e.col, kv_head_of(problem, head));
    p.dprobs[at] = dropout_factor(problem, s.batch, head, e.row, e.col) *
                   dot(dout, p.dout.dim, v, problem.v.dim, problem.head_dim_v);
}

// Gradient of the logit (dS in the formulas, dbias before the sums); the softcap comes after it.
__device__ __forceinline__ float dlogit(const BackwardParams& p, const Sequence& s, int head, int row, long long at)
{
    return p.probs[at] * (p.dprobs[at] - *value_of(p.delta, s.batch, s.q_start, row, head));
}

extern "C" __global__ void __launch_bounds__(THREADS) backward_dscores(BackwardParams p)
{
    const Problem& problem = p.problem;
    const Sequence s = sequence_of(problem, blockIdx.z);
    const int head = blockIdx.y;
    const Element e = my_element(s.q_length, problem.seqlen_k);
    if (!e.inside)
        return;
    const long long at = pair_index(problem, s.batch, head, e.row, e.col);
    float gradient = hidden_mark();
    if (!is_hidden(p.probs[at])) {
        gradient = dlogit(p, s, head, e.row, at);
        if (problem.softcap > 0.0f)
            gradient *=
                logit_of(problem, s, head, e.row, e.col, query_dot_key(problem, s, head, e.row, e.col)).slope;
    }
    p.dscores[at] = gradient;
}

extern "C" __global__ void __launch_bounds__(THREADS) backward_dq(BackwardParams p)
{
    const Problem& problem = p.problem;
    const Sequence s = sequence_of(problem, blockIdx.z);
    const int head = blockIdx.y;
    const Element e = my_element(s.q_extent, problem.head_dim);
    if (!e.inside)
        return;
    const long long first = pair_index(problem, s.batch, head, e.row, 0);
    const Scalar* k = row_of(problem.k, s.batch, s.k_start, 0, kv_head_of(problem, head)) + e.col * problem.k.dim;
    float sum = 0.0f;
    for (int key = 0; e.row < s.q_length && key < s.k_length; ++key)
        if (!is_hidden(p.dscores[first + key]))
            sum += p.dscores[first + key] * to_float(k[key * problem.k.seq]);
    store(row_of(p.dq, s.batch, s.q_start, e.row, head) + e.col * p.dq.dim, sum * problem.softmax_scale);
}

// One element of a key row's gradient: sum over the query heads of its group and over the queries.
// `weights` is dS (then other = q) or P (then other = dO, and dropout applies).
__device__ __forceinline__ float key_sum(const Problem& p, const Sequence& s, int kv_head, int key, int dim,
                                         const float* weights, const TensorView& other, bool drops)
{
    const int group = p.nheads / p.nheads_kv;
    float sum = 0.0f;
    for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
        const Scalar* x = row_of(other, s.batch, s.q_start, 0, head) + dim * other.dim;
        for (int row = 0; key < s.k_length && row < s.q_length; ++row) {
            const float weight = weights[pair_index(p, s.batch, head, row, key)];
            if (is_hidden(weight))
                continue;
            const float factor = drops ? dropout_factor(p, s.batch, head, row, key) : 1.0f;
            sum += weight * factor * to_float(x[row * other.seq]);
        }
    }
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS) backward_dk(BackwardParams p)
{
    const Sequence s = sequence_of(p.problem, blockIdx.z);
    const Element e = my_element(s.k_extent, p.problem.head_dim);
    if (!e.inside)
        return;
    const float sum = key_sum(p.problem, s, blockIdx.y, e.row, e.col, p.dscores, p.problem.q, false);
    store(row_of(p.dk, s.batch, s.k_start, e.row, blockIdx.y) + e.col * p.dk.dim, sum * p.problem.softmax_scale);
}

extern "C" __global__ void __launch_bounds__(THREADS) backward_dv(BackwardParams p)
{
    const Sequence s = sequence_of(p.problem, blockIdx.z);
    const Element e = my_element(s.k_extent, p.problem.head_dim_v);
    if (!e.inside)
        return;
    const float sum = key_sum(p.problem, s, blockIdx.y, e.row, e.col, p.probs, p.dout, true);
    store(row_of(p.dv, s.batch, s.k_start, e.row, blockIdx.y) + e.col * p.dv.dim, sum);
}

// Sum of dlogit over the pairs that one element of the bias was added to, within one sequence and head.
__device__ __forceinline__ float bias_sum(const BackwardParams& p, const Sequence& s, int head, const Element& e)
{
    const int end_row = p.bias_rows == 1 ? s.q_length : min(e.row + 1, s.q_length);
    const int end_col = p.bias_cols == 1 ? s.k_length : min(e.col + 1, s.k_length);
    float sum = 0.0f;
    for (int row = e.row; row < end_row; ++row)
        for (int col = e.col; col < end_col; ++col) {
            const long long at = pair_index(p.problem, s.batch, head, row, col);
            if (!is_hidden(p.probs[at]))
                sum += dlogit(p, s, head, row, at);
        }
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS) backward_dbias(BackwardParams p)
{
    const Problem& problem = p.problem;
    const Element e = my_element(p.bias_rows, p.bias_cols);
    if (!e.inside)
        return;
    const int end_batch = p.bias_batch == 1 ? problem.batch : blockIdx.z + 1;
    const int end_head = p.bias_heads == 1 ? problem.nheads : blockIdx.y + 1;
    float sum = 0.0f;
    for (int batch = blockIdx.z; batch < end_batch; ++batch)
        for (int head = blockIdx.y; head < end_head; ++head)
            sum += bias_sum(p, sequence_of(problem, batch), head, e);
    const PairView& d = p.dbias;
    const long long at = blockIdx.z * d.batch + blockIdx.y * d.head + e.row * d.row + e.col * d.col;
    store_mixed(d.data, at, problem.bias_is_fp32, sum);
}
