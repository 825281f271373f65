// What a launch is told: one struct per direction, passed by value, mirrored in kernels/params.py as NumPy dtypes.
//
// Strides count elements and may be zero (broadcast) or negative. A null `data` means "this input was not given".
// In the packed (ragged) layout the batch stride is zero and the sequence start comes from cu_seqlens.
#pragma once

struct TensorView {  // q, k, v, out and their gradients: (batch, seqlen, nheads, head_dim) in the storage type
    void* data;
    long long batch, seq, head, dim;
};

struct PairView {  // one value for each (query, key) pair: (batch, nheads, seqlen_q, seqlen_k)
    void* data;
    long long batch, head, row, col;
};

struct RowView {  // one fp32 value for each query row: (batch, nheads, seqlen_q)
    float* data;
    long long batch, head, row;
};

struct Problem {
    TensorView q, k, v;
    PairView keep_mask;              // uint8: nonzero = visible
    PairView block_mask;             // uint8, one for each block of block_rows x block_cols pairs
    PairView bias;                   // storage type or fp32, added to the capped score
    const int* cu_seqlens_q;         // (batch + 1): first packed row of each sequence
    const int* cu_seqlens_k;
    const int* seqlens_q;            // (batch): rows in use of each sequence
    const int* seqlens_k;
    const float* alibi_slopes;       // strides alibi_batch, alibi_head
    const void* sink;                // (nheads): one extra logit per head, its value vector is zero
    long long alibi_batch, alibi_head, sink_head;
    int batch, nheads, nheads_kv, head_dim, head_dim_v;
    int seqlen_q, seqlen_k;          // the longest sequence; the allotted rows in the padded layout
    int band_left, band_right;       // keys visible to the left and right of the diagonal; causal: band_right = 0
    int bottom_right;                // 1: the diagonal ends in the last key of the last row; 0: starts in the first
    int block_rows, block_cols;
    int bias_is_fp32, sink_is_fp32;
    float softmax_scale;
    float softcap;                   // 0: none
    float dropout_scale;             // 1 / (1 - p)
    unsigned int drop_below;         // a 32-bit draw under this is dropped; 0: no dropout
    unsigned int seed_low, seed_high, dropout_offset;
};

struct ForwardParams {
    Problem problem;
    TensorView out;
    RowView lse;                     // natural log
    float* scores;                   // workspaces of the textbook version: (batch, nheads, seqlen_q, seqlen_k)
    float* probs;
};

struct BackwardParams {
    Problem problem;
    TensorView out, dout, dq, dk, dv;
    RowView lse, dlse, delta;        // dlse: optional gradient with respect to lse; delta: workspace
    PairView dbias;                  // element type of the bias; an axis of size 1 is summed over
    int bias_batch, bias_heads, bias_rows, bias_cols;
    void* dsink;                     // (nheads), element type of the sink
    long long dsink_head;
    float* scores;                   // workspaces of the textbook version: (batch, nheads, seqlen_q, seqlen_k)
    float* probs;
    float* dprobs;
    float* dscores;
};

struct DropoutMaskParams {
    PairView keep;                   // uint8: 1 = kept
    int nheads, seqlen_q, seqlen_k;
    unsigned int drop_below, seed_low, seed_high, dropout_offset;
};
