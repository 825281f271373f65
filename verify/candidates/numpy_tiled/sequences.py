"""Equally long sequences of a call as fp32 operands with heads first, and the way back into the caller's shapes.

Padding, unused pages and other sequences are never read here, so nothing that they hold can reach a result.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verify.candidate import Array, Call
from verify.candidates.numpy_tiled.rounding import F32, fp32
from verify.problem import AttentionProblem


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sequences:
    """One or several sequences of the same valid lengths; b counts them, h query heads, hkv key/value heads."""

    problem: AttentionProblem
    batch: slice
    """Which sequences of the call."""
    seqlen_q: int
    seqlen_k: int
    q: F32
    """(b, h, seqlen_q, head_dim)"""
    k: F32
    """(b, hkv, seqlen_k, head_dim)"""
    v: F32
    """(b, hkv, seqlen_k, head_dim_v)"""
    dout: F32 | None
    """(b, h, seqlen_q, head_dim_v)"""
    dlse: F32 | None
    """(b, h, seqlen_q)"""
    mask: Array | None
    """bool (b, h, seqlen_q, seqlen_k)"""
    block_mask: Array | None
    """bool (b, h, row blocks, key blocks)"""
    bias: F32 | None
    """(b|1, h|1, seqlen_q, seqlen_k)"""
    alibi_slopes: F32 | None
    """(h,)"""
    sink: F32 | None
    """(h,)"""
    dropout_keep: Array | None
    """bool (b, h, seqlen_q, seqlen_k)"""


def sequences(call: Call) -> Iterator[Sequences]:
    """All sequences of the call, those of equal lengths together."""
    p = call.problem
    if not p.is_ragged and p.seqlens_k is None:
        yield _gather(call, slice(0, p.batch), p.seqlen_q, p.seqlen_k)
        return
    for index in range(p.batch):
        yield _gather(call, slice(index, index + 1), *p.lengths(index))


def _gather(call: Call, batch: slice, seqlen_q: int, seqlen_k: int) -> Sequences:
    p, arrays = call.problem, call.arrays

    def score_part(name: str) -> Array | None:
        return arrays[name][score_index(arrays[name], batch, seqlen_q, seqlen_k)] if name in arrays else None

    bias = score_part("bias")
    block_mask = arrays.get("block_mask")
    return Sequences(
        problem=p,
        batch=batch,
        seqlen_q=seqlen_q,
        seqlen_k=seqlen_k,
        q=_heads_first(arrays["q"][query_rows(p, batch)]),
        k=_heads_first(_keys(call, "k", batch, seqlen_k)),
        v=_heads_first(_keys(call, "v", batch, seqlen_k)),
        dout=_heads_first(arrays["dout"][query_rows(p, batch)]) if call.backward else None,
        dlse=_row_values(p, arrays["dlse"], batch) if call.backward and call.with_dlse else None,
        mask=score_part("mask"),
        block_mask=None if block_mask is None else block_mask[batch],
        bias=None if bias is None else fp32(bias),
        alibi_slopes=fp32(arrays["alibi_slopes"]) if "alibi_slopes" in arrays else None,
        sink=fp32(arrays["sink"]) if "sink" in arrays else None,
        dropout_keep=score_part("dropout_keep"),
    )


def score_index(array: Array, batch: slice, seqlen_q: int, seqlen_k: int) -> tuple[slice, ...]:
    """Index of the valid part of an array (batch|1, nheads|1, seqlen_q, seqlen_k) for these sequences."""
    chosen = batch if array.shape[0] > 1 else slice(0, 1)
    return chosen, slice(None), slice(0, seqlen_q), slice(0, seqlen_k)


def query_rows(p: AttentionProblem, batch: slice) -> slice:
    """Index along the first axis of q, out and dout; packed rows when ragged."""
    if p.cu_seqlens_q is None:
        return batch
    return slice(p.cu_seqlens_q[batch.start], p.cu_seqlens_q[batch.stop])


def lse_index(p: AttentionProblem, batch: slice) -> tuple[slice, ...]:
    """Index of these sequences in an array (batch, nheads, seqlen_q) or (nheads, total_q)."""
    return (slice(None), query_rows(p, batch)) if p.is_ragged else (batch,)


def key_index(call: Call, batch: slice, seqlen_k: int) -> tuple[Any, ...]:
    """Index of the valid keys of these sequences in k, v, dk, dv: a view except for pages."""
    p = call.problem
    if p.page_size:
        positions = np.arange(seqlen_k)
        return call.arrays["page_table"][batch.start][positions // p.page_size], positions % p.page_size
    if p.cu_seqlens_k is not None:
        return (slice(p.cu_seqlens_k[batch.start], p.cu_seqlens_k[batch.stop]),)
    return batch, slice(0, seqlen_k)


def _keys(call: Call, name: str, batch: slice, seqlen_k: int) -> Array:
    chosen: Array = call.arrays[name][key_index(call, batch, seqlen_k)]
    return chosen


def _row_values(p: AttentionProblem, values: Array, batch: slice) -> F32:
    chosen = fp32(values[lse_index(p, batch)])
    return chosen[None] if p.is_ragged else chosen


def _heads_first(array: Array) -> F32:
    """(b, rows, heads, dim) or (rows, heads, dim) to fp32 (b, heads, rows, dim)."""
    batched = array if array.ndim == 4 else array[None]
    return np.ascontiguousarray(batched.transpose(0, 2, 1, 3)).astype(np.float32)


def rows_first(array: NDArray[Any], packed: bool) -> NDArray[Any]:
    """Inverse of heads-first: (b, heads, rows, dim) to (b, rows, heads, dim), without b when packed."""
    ordered = array.transpose(0, 2, 1, 3)
    return ordered[0] if packed else ordered
