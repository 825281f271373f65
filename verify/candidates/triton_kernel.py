"""Fused attention in Triton: one program a tile of query rows and a head, online softmax, out and lse.

Inputs (batch, seqlen, nheads, head_dim) with any strides; lse (batch, nheads, seqlen_q) fp32, natural logarithm.
Imports triton at once; TRITON_INTERPRET=1 in the environment runs it on the CPU.
"""

# ruff: noqa: N803 - Triton's compile-time constants are upper case by custom
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def attention_forward(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr,
    q_batch, q_row, q_head, q_dim, k_batch, k_row, k_head, k_dim, v_batch, v_row, v_head, v_dim,
    seqlen_q, seqlen_k, nheads, group, scale, offset,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, CAUSAL: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """One tile of ROWS query rows. DIM is HEAD_DIM rounded up to a power of two; offset aligns the causal diagonal."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    batch, head = tl.program_id(1) // nheads, tl.program_id(1) % nheads
    dims = tl.arange(0, DIM)
    in_dim, in_row = dims < HEAD_DIM, rows < seqlen_q
    q_at = q_ptr + batch.to(tl.int64) * q_batch + head * q_head + rows[:, None].to(tl.int64) * q_row + dims * q_dim
    q = tl.load(q_at, mask=in_row[:, None] & in_dim, other=0.0)
    k_head_ptr = k_ptr + batch.to(tl.int64) * k_batch + (head // group) * k_head
    v_head_ptr = v_ptr + batch.to(tl.int64) * v_batch + (head // group) * v_head
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    out = tl.zeros((ROWS, DIM), tl.float32)
    last = seqlen_k
    if CAUSAL:  # keys beyond the diagonal of the tile's last row are seen by none of its rows
        last = tl.minimum(seqlen_k, tl.program_id(0) * ROWS + ROWS + offset)
    for start in range(0, last, KEYS):
        keys = start + tl.arange(0, KEYS)
        in_key = keys < seqlen_k
        at = keys.to(tl.int64)
        k = tl.load(k_head_ptr + at[None, :] * k_row + dims[:, None] * k_dim, mask=in_key & in_dim[:, None], other=0.0)
        v = tl.load(v_head_ptr + at[:, None] * v_row + dims * v_dim, mask=in_key[:, None] & in_dim, other=0.0)
        scores = tl.dot(q, k, input_precision="ieee") * (scale * LOG2E)
        seen = in_key[None, :] & in_row[:, None]
        if CAUSAL:
            seen = seen & (keys[None, :] <= rows[:, None] + offset)
        scores = tl.where(seen, scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        # A row that has seen no key yet: its maximum is -inf, and -inf - -inf would be NaN.
        shift = tl.where(new_top == float("-inf"), 0.0, new_top)
        probs = tl.exp2(scores - shift[:, None])
        rescale = tl.exp2(top - shift)
        total = total * rescale + tl.sum(probs, 1)
        out = out * rescale[:, None] + tl.dot(probs.to(v.dtype), v, input_precision="ieee")
        top = new_top
    blind = total == 0.0
    out = out / tl.where(blind, 1.0, total)[:, None]
    lse = tl.where(blind, float("-inf"), (top + tl.log2(tl.where(blind, 1.0, total))) * LN2)
    plain_rows = (batch.to(tl.int64) * seqlen_q + rows) * nheads + head
    tl.store(out_ptr + plain_rows[:, None] * HEAD_DIM + dims, out, mask=in_row[:, None] & in_dim)
    tl.store(lse_ptr + tl.program_id(1).to(tl.int64) * seqlen_q + rows, lse, mask=in_row)
