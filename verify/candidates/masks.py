"""Masks of a call as arrays, for libraries that know no alignment, window or block pattern of their own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from verify.candidate import Array, Call
from verify.problem import AttentionProblem

Keep = NDArray[np.bool_]
MASKED = frozenset({"causal", "causal_topleft", "window", "boolean", "block_sparse", "bias", "bias_minus_infinity"})
"""Features of a library that takes one dense mask or bias, which this module makes of all of them."""


def diagonal_offset(p: AttentionProblem) -> int:
    """Keys by which the causal diagonal is shifted to the right: seqlen_k - seqlen_q when bottom-right, else 0."""
    return p.seqlen_k - p.seqlen_q if p.alignment == "bottom_right" else 0


def positional_keep(p: AttentionProblem, *, causal: bool = True, window: bool = True) -> Keep | None:
    """Causal and window mask (seqlen_q, seqlen_k), True = visible; None where neither hides anything.

    (batch, 1, seqlen_q, seqlen_k) where sequences of several lengths have several diagonals; keys beyond a length are
    not hidden for that.
    """
    left, right = p.window if p.window is not None and window else (None, None)
    if p.causal and causal:
        right = 0
    if left is None and right is None:
        return None
    ahead = np.arange(p.seqlen_k) - np.arange(p.seqlen_q)[:, None] - _diagonals(p)
    keep: Keep = np.ones(ahead.shape, dtype=bool)
    if left is not None:
        keep &= ahead >= -left
    if right is not None:
        keep &= ahead <= right
    return keep


def _diagonals(p: AttentionProblem) -> NDArray[np.int64] | int:
    """Offset of the diagonal, or of each sequence's (batch, 1, 1, 1): bottom-right is the last valid key."""
    if p.seqlens_k is None or p.alignment == "top_left":
        return diagonal_offset(p)
    return np.array(p.seqlens_k, np.int64).reshape(-1, 1, 1, 1) - p.seqlen_q


def blind_rows(p: AttentionProblem) -> Keep:
    """Rows that causality and window leave without a key: (seqlen_q,), or (total_q,) when ragged."""
    whole = replace(p, cu_seqlens_q=None, cu_seqlens_k=None, batch=1)
    parts = []
    for sequence in range(p.batch if p.is_ragged else 1):
        rows, keys = p.lengths(sequence)
        one = replace(whole, seqlen_q=rows, seqlen_k=keys, seqlens_k=None, page_size=0)
        keep = positional_keep(one)
        parts.append(np.full(rows, keys == 0) if keep is None else ~keep.any(axis=1))
    blind: Keep = np.concatenate(parts)
    return blind


def keep_mask(call: Call, *, causal: bool = True, window: bool = True) -> Keep | None:
    """All that hides keys but lengths: position, the boolean mask and the block mask; broadcasts to
    (batch, nheads, seqlen_q, seqlen_k). None where every key is visible."""
    p = call.problem
    parts = [positional_keep(p, causal=causal, window=window), call.arrays.get("mask")]
    if "block_mask" in call.arrays:
        blocks = call.arrays["block_mask"]
        rows, keys = np.arange(p.seqlen_q) // p.block_size[0], np.arange(p.seqlen_k) // p.block_size[1]
        parts.append(blocks[:, :, rows[:, None], keys[None, :]])
    keep: Keep | None = None
    for part in parts:
        if part is not None:
            keep = np.asarray(part) if keep is None else keep & part
    return None if keep is None else keep.reshape((1,) * (4 - keep.ndim) + keep.shape)


def heads_first_copy(array: Array) -> Array:
    """(batch, rows, heads, dim) as a contiguous (batch, heads, rows, dim) array."""
    return np.ascontiguousarray(array.swapaxes(1, 2))
