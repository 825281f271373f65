"""Ragged batches: sequences laid end to end along one axis, cut by cu_seqlens.

Each sequence goes through `attention` by itself, so no formula is written twice and neighbours cannot meet.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy

from references.attention import AttentionResult, attention
from references.attention_backward import Gradients, attention_backward
from references.options import NO_EXTRAS, Array, AttentionExtras, AttentionOptions
from references.shapes import require_shape


def unpack(packed: Array, cu_seqlens: Array, *, xp: Any = numpy) -> Array:
    """Padded (batch, max_seqlen, ...) from packed (total, ...); slack is zero. Same dtype.

    Raises
    ------
    ValueError
        cu_seqlens does not start at 0, decreases, or does not end at `total`.
    """
    bounds = _bounds("cu_seqlens", cu_seqlens, packed.shape[0])
    longest = max((stop - start for start, stop in pairwise(bounds)), default=0)
    padded = xp.zeros((len(bounds) - 1, longest, *packed.shape[1:]), dtype=packed.dtype)
    for index, (start, stop) in enumerate(pairwise(bounds)):
        padded[index, : stop - start] = packed[start:stop]
    return padded


def pack(padded: Array, cu_seqlens: Array, *, xp: Any = numpy) -> Array:
    """Packed (total, ...) from padded (batch, max_seqlen, ...); the slack is not read. Same dtype."""
    bounds = _bounds("cu_seqlens", cu_seqlens, None)
    if padded.shape[0] != len(bounds) - 1:
        raise ValueError(f"padded: batch {padded.shape[0]}, expected {len(bounds) - 1}, one less than len(cu_seqlens)")
    longest = max((stop - start for start, stop in pairwise(bounds)), default=0)
    if padded.shape[1] < longest:
        raise ValueError(f"padded: seqlen {padded.shape[1]}, expected >= {longest}, the longest of cu_seqlens")
    packed = xp.zeros((bounds[-1], *padded.shape[2:]), dtype=padded.dtype)
    for index, (start, stop) in enumerate(pairwise(bounds)):
        packed[start:stop] = padded[index, : stop - start]
    return packed


def attention_varlen(
    q: Array,
    k: Array,
    v: Array,
    *,
    cu_seqlens_q: Array,
    cu_seqlens_k: Array,
    options: AttentionOptions,
    extras: AttentionExtras = NO_EXTRAS,
    xp: Any = numpy,
    rows_per_chunk: int | None = None,
) -> AttentionResult:
    """Forward attention of a ragged batch.

    Parameters
    ----------
    q : float array, shape (total_q, nheads, head_dim)
    k : float array, shape (total_k, nheads_kv, head_dim)
    v : float array, shape (total_k, nheads_kv, head_dim_v)
    cu_seqlens_q, cu_seqlens_k : int arrays, shape (batch + 1,)
        Sequence b holds rows cu_seqlens[b] to cu_seqlens[b + 1].
    extras : AttentionExtras
        mask, bias, dropout_keep and block_mask as for a padded batch of (max_seqlen_q, max_seqlen_k); each
        sequence uses its leading corner. seqlens_q and seqlens_k must be None.

    Returns
    -------
    AttentionResult
        out (total_q, nheads, head_dim_v) and lse (nheads, total_q), fp64.

    Raises
    ------
    ValueError
        Shapes or offsets that do not fit together.
    """
    out = xp.zeros((*q.shape[:2], v.shape[2]))
    lse = xp.full((q.shape[1], q.shape[0]), -xp.inf)
    for part in _sequences(q, k, cu_seqlens_q, cu_seqlens_k, extras):
        result = attention(
            q[None, part.rows],
            k[None, part.keys],
            v[None, part.keys],
            options=options,
            extras=part.extras,
            xp=xp,
            rows_per_chunk=rows_per_chunk,
        )
        out[part.rows] = result.out[0]
        lse[:, part.rows] = result.lse[0]
    return AttentionResult(out=out, lse=lse)


def attention_varlen_backward(
    q: Array,
    k: Array,
    v: Array,
    dout: Array,
    *,
    cu_seqlens_q: Array,
    cu_seqlens_k: Array,
    options: AttentionOptions,
    extras: AttentionExtras = NO_EXTRAS,
    dlse: Array | None = None,
    xp: Any = numpy,
    rows_per_chunk: int | None = None,
) -> Gradients:
    """Gradients of a ragged batch; operands as in `attention_varlen`.

    Parameters
    ----------
    dout : float array, shape (total_q, nheads, head_dim_v)
    dlse : float array, shape (nheads, total_q), optional

    Returns
    -------
    Gradients
        dq, dk, dv packed like q, k, v; dbias in the shape of extras.bias; dsink (nheads,).
    """
    require_shape("dout", dout, (*q.shape[:2], v.shape[2]))
    if dlse is not None:
        require_shape("dlse", dlse, (q.shape[1], q.shape[0]))
    grads = Gradients(
        dq=xp.zeros(q.shape),
        dk=xp.zeros(k.shape),
        dv=xp.zeros(v.shape),
        dbias=None if extras.bias is None else xp.zeros(extras.bias.shape),
        dsink=None if extras.sink is None else xp.zeros(extras.sink.shape),
    )
    for part in _sequences(q, k, cu_seqlens_q, cu_seqlens_k, extras):
        one = attention_backward(
            q[None, part.rows],
            k[None, part.keys],
            v[None, part.keys],
            dout[None, part.rows],
            options=options,
            extras=part.extras,
            dlse=None if dlse is None else dlse[None, :, part.rows],
            xp=xp,
            rows_per_chunk=rows_per_chunk,
        )
        grads.dq[part.rows], grads.dk[part.keys], grads.dv[part.keys] = one.dq[0], one.dk[0], one.dv[0]
        if grads.dsink is not None:
            grads.dsink[...] += one.dsink
        if grads.dbias is not None:
            _four_axes(grads.dbias)[part.corner(grads.dbias)] += _four_axes(one.dbias)
    return grads


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sequence:
    """One sequence of a ragged batch: where its rows lie, and the extras that belong to it."""

    index: int
    rows: slice
    keys: slice
    extras: AttentionExtras

    @property
    def lengths(self) -> tuple[int, int]:
        """Rows of q and of k."""
        return self.rows.stop - self.rows.start, self.keys.stop - self.keys.start

    def corner(self, array: Array) -> tuple[slice, ...]:
        """Index of the part of a broadcastable array that this sequence uses, all four axes kept."""
        batch, _, rows, keys = _four_axes(array).shape
        everything = slice(None)
        return (
            everything if batch == 1 else slice(self.index, self.index + 1),
            everything,
            everything if rows == 1 else slice(0, self.lengths[0]),
            everything if keys == 1 else slice(0, self.lengths[1]),
        )


def _sequences(
    q: Array, k: Array, cu_seqlens_q: Array, cu_seqlens_k: Array, extras: AttentionExtras
) -> Iterator[_Sequence]:
    if extras.seqlens_q is not None or extras.seqlens_k is not None:
        raise ValueError("seqlens_q, seqlens_k: set, expected None because cu_seqlens already gives the lengths")
    bounds_q = _bounds("cu_seqlens_q", cu_seqlens_q, q.shape[0])
    bounds_k = _bounds("cu_seqlens_k", cu_seqlens_k, k.shape[0])
    if len(bounds_q) != len(bounds_k):
        raise ValueError(f"cu_seqlens_k: {len(bounds_k)} entries, expected {len(bounds_q)} as in cu_seqlens_q")
    for index, (of_q, of_k) in enumerate(zip(pairwise(bounds_q), pairwise(bounds_k), strict=True)):
        part = _Sequence(index=index, rows=slice(*of_q), keys=slice(*of_k), extras=extras)
        yield replace(part, extras=_extras_of(extras, part))


def _extras_of(extras: AttentionExtras, part: _Sequence) -> AttentionExtras:
    """The extras of one sequence, as a batch of one."""

    def cut(array: Array | None) -> Array | None:
        return None if array is None else _four_axes(array)[part.corner(array)]

    slopes, blocks, dropout = extras.alibi_slopes, extras.block_mask, extras.dropout_keep
    seqlen_q, seqlen_k = part.lengths
    if slopes is not None and slopes.ndim == 2:
        slopes = slopes[part.index]
    if dropout is not None:
        # Never broadcast, so an axis of length 1 is cut like any other.
        dropout = dropout[part.index : part.index + 1, :, :seqlen_q, :seqlen_k]
    if blocks is not None and extras.block_size is not None:
        batch = 0 if blocks.shape[0] == 1 else part.index
        block_q, block_k = extras.block_size
        blocks = blocks[batch : batch + 1, :, : -(-seqlen_q // block_q), : -(-seqlen_k // block_k)]
    return replace(
        extras,
        mask=cut(extras.mask),
        bias=cut(extras.bias),
        dropout_keep=dropout,
        alibi_slopes=slopes,
        block_mask=blocks,
    )


def _four_axes(array: Array) -> Array:
    return array.reshape((1,) * (4 - array.ndim) + tuple(array.shape))


def _bounds(name: str, cu_seqlens: Array, total: int | None) -> list[int]:
    bounds = [int(n) for n in cu_seqlens.tolist()]
    grows = all(start <= stop for start, stop in pairwise(bounds))
    if not bounds or bounds[0] != 0 or not grows or (total is not None and bounds[-1] != total):
        end = "its total" if total is None else total
        raise ValueError(f"{name}: {bounds}, expected offsets that start at 0, never decrease and end at {end}")
    return bounds
