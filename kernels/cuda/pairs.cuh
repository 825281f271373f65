// What happens to one (query, key) pair: is it visible, what is its logit, is it dropped. Shared by all versions.
//
//   logit = cap(q.k * softmax_scale) + bias - slope * |row + diagonal - col|,   cap(s) = softcap * tanh(s / softcap)
//
// The diagonal is seqlen_k - seqlen_q of the sequence (bottom right) or 0 (top left). A pair is visible when
//   row + diagonal - band_left <= col <= row + diagonal + band_right,  col < k_length,  row < q_length
// and neither mask, nor a bias of -inf, hides it.
#pragma once

#include "numbers.cuh"
#include "params.cuh"
#include "philox.cuh"

struct Sequence {
    int batch;
    int q_start, k_start;    // first row in the packed layout, else 0
    int q_extent, k_extent;  // rows allotted; those from length on are padding: written as zero, never read
    int q_length, k_length;
    int diagonal;
};

__device__ __forceinline__ Sequence sequence_of(const Problem& p, int batch)
{
    // Lengths are device data that nobody has checked. Clamped to what the launch and the workspaces were sized for, a
    // wrong one gives wrong numbers but no access outside of the tensors of this batch element.
    Sequence s;
    s.batch = batch;
    s.q_start = p.cu_seqlens_q ? p.cu_seqlens_q[batch] : 0;
    s.k_start = p.cu_seqlens_k ? p.cu_seqlens_k[batch] : 0;
    s.q_extent = p.cu_seqlens_q ? min(p.cu_seqlens_q[batch + 1] - s.q_start, p.seqlen_q) : p.seqlen_q;
    s.k_extent = p.cu_seqlens_k ? min(p.cu_seqlens_k[batch + 1] - s.k_start, p.seqlen_k) : p.seqlen_k;
    s.q_length = p.seqlens_q ? min(p.seqlens_q[batch], s.q_extent) : s.q_extent;
    s.k_length = p.seqlens_k ? min(p.seqlens_k[batch], s.k_extent) : s.k_extent;
    s.diagonal = p.bottom_right ? s.k_length - s.q_length : 0;
    return s;
}

// First and one-past-last key of the band for a row, and query of the band for a column. Empty when end <= first.
__device__ __forceinline__ int first_key(const Problem& p, const Sequence& s, int row)
{
    return max(0, row + s.diagonal - p.band_left);
}

__device__ __forceinline__ int end_key(const Problem& p, const Sequence& s, int row)
{
    return min(s.k_length, row + s.diagonal + p.band_right + 1);
}

__device__ __forceinline__ int first_query(const Problem& p, const Sequence& s, int col)
{
    return max(0, col - s.diagonal - p.band_right);
}

__device__ __forceinline__ int end_query(const Problem& p, const Sequence& s, int col)
{
    return min(s.q_length, col - s.diagonal + p.band_left + 1);
}

__device__ __forceinline__ bool mask_keeps(const PairView& mask, int batch, int head, int row, int col)
{
    const unsigned char* data = static_cast<const unsigned char*>(mask.data);
    return data[batch * mask.batch + head * mask.head + row * mask.row + col * mask.col] != 0;
}

__device__ __forceinline__ float bias_of(const Problem& p, int batch, int head, int row, int col)
{
    const long long at = batch * p.bias.batch + head * p.bias.head + row * p.bias.row + col * p.bias.col;
    return load_mixed(p.bias.data, at, p.bias_is_fp32);
}

__device__ __forceinline__ bool is_visible(const Problem& p, const Sequence& s, int head, int row, int col)
{
    if (row >= s.q_length || col < first_key(p, s, row) || col >= end_key(p, s, row))
        return false;
    if (p.keep_mask.data && !mask_keeps(p.keep_mask, s.batch, head, row, col))
        return false;
    if (p.block_mask.data && !mask_keeps(p.block_mask, s.batch, head, row / p.block_rows, col / p.block_cols))
        return false;
    // -inf is the additive way to write a mask: such a key is hidden, so its V is never multiplied by a zero weight.
    return !p.bias.data || bias_of(p, s.batch, head, row, col) != -infinity();
}

struct Logit {
    float value;
    float slope;  // d(value) / d(q.k * softmax_scale): 1 without softcap
};

__device__ __forceinline__ Logit logit_of(const Problem& p, const Sequence& s, int head, int row, int col, float dot)
{
    Logit logit = {dot * p.softmax_scale, 1.0f};
    if (p.softcap > 0.0f) {
        const float t = tanhf(logit.value / p.softcap);
        logit.value = p.softcap * t;
        logit.slope = 1.0f - t * t;
    }
    if (p.bias.data)
        logit.value += bias_of(p, s.batch, head, row, col);
    if (p.alibi_slopes) {
        const float slope = p.alibi_slopes[s.batch * p.alibi_batch + head * p.alibi_head];
        logit.value -= slope * static_cast<float>(abs(row + s.diagonal - col));
    }
    return logit;
}

// Factor on the probability of a pair: 1 without dropout, else 0 or 1 / (1 - p).
__device__ __forceinline__ float dropout_factor(const Problem& p, int batch, int head, int row, int col)
{
    if (p.drop_below == 0)
        return 1.0f;
    const unsigned int draw =
        dropout_draw(p.seed_low, p.seed_high, p.dropout_offset, batch * p.nheads + head, row, col);
    return draw >= p.drop_below ? p.dropout_scale : 0.0f;
}

__device__ __forceinline__ float sink_of(const Problem& p, int head)
{
    return p.sink ? load_mixed(p.sink, head * p.sink_head, p.sink_is_fp32) : -infinity();
}

__device__ __forceinline__ int kv_head_of(const Problem& p, int head) { return head / (p.nheads / p.nheads_kv); }

// Element (row, 0) of one head of one sequence. `start` is the sequence's first row in the packed layout.
__device__ __forceinline__ Scalar* row_of(const TensorView& t, int batch, int start, int row, int head)
{
    const long long packed_row = start + static_cast<long long>(row);
    return static_cast<Scalar*>(t.data) + batch * t.batch + packed_row * t.seq + head * t.head;
}

__device__ __forceinline__ float* value_of(const RowView& t, int batch, int start, int row, int head)
{
    return t.data + batch * t.batch + head * t.head + (start + static_cast<long long>(row)) * t.row;
}
