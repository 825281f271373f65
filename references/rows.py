"""Softmax of a block of query rows, and the cutting of a problem into such blocks.

Shared by the forward and the backward. Masks come from `masks.py`; nothing here knows what hides a key.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from references.masks import RowBlock, bias_rows, keep_rows, key_range
from references.nonfinite import all_finite
from references.options import Array, AttentionExtras, AttentionOptions
from references.shapes import Sizes

BLOCK_BYTES = 32 * 2**20
"""Size of one fp64 block of scores; about four live at once. At 8192 x 8192 x 64 smaller blocks cost up to half more
time and larger ones gain less than a tenth (one x86-64 core, OpenBLAS)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadGroup:
    """Query heads of one sequence that are worked on together, and the key/value heads that they use."""

    batch: int
    heads: slice
    kv_heads: slice
    seqlen_q: int
    seqlen_k: int
    rows_per_block: int

    @property
    def keys(self) -> slice:
        """Valid keys of this sequence."""
        return slice(0, self.seqlen_k)

    def blocks(self, options: AttentionOptions) -> Iterator[RowBlock]:
        """Blocks of rows that cover the sequence in order."""
        for start in range(0, self.seqlen_q, self.rows_per_block):
            rows = slice(start, min(start + self.rows_per_block, self.seqlen_q))
            yield RowBlock(
                batch=self.batch,
                heads=self.heads,
                rows=rows,
                keys=key_range(options, rows, self.seqlen_q, self.seqlen_k),
                seqlen_q=self.seqlen_q,
                seqlen_k=self.seqlen_k,
            )


def head_groups(sizes: Sizes, rows_per_chunk: int | None) -> Iterator[HeadGroup]:
    """All heads of a sequence together if their scores fit one block, else one key/value head at a time."""
    if rows_per_chunk is not None and rows_per_chunk < 1:
        raise ValueError(f"rows_per_chunk: {rows_per_chunk}, expected None or an integer >= 1")
    for batch, (seqlen_q, seqlen_k) in enumerate(zip(sizes.lengths_q, sizes.lengths_k, strict=True)):
        row_bytes = 8 * max(seqlen_k, 1)
        together = sizes.nheads * seqlen_q * row_bytes <= BLOCK_BYTES
        kv_step = sizes.nheads_kv if together else 1
        rows = rows_per_chunk or max(1, BLOCK_BYTES // (row_bytes * kv_step * sizes.group))
        for kv_head in range(0, sizes.nheads_kv, kv_step):
            yield HeadGroup(
                batch=batch,
                heads=slice(kv_head * sizes.group, (kv_head + kv_step) * sizes.group),
                kv_heads=slice(kv_head, kv_head + kv_step),
                seqlen_q=seqlen_q,
                seqlen_k=seqlen_k,
                rows_per_block=rows,
            )


def head_major(array: Array, batch: int, rows: slice, heads: slice, xp: Any) -> Array:
    """fp64 (heads, rows, dim) of one sequence, copied only if the type or the layout (for BLAS) asks for it."""
    part = array[batch, rows, heads].astype(xp.float64, copy=False).swapaxes(0, 1)
    return part if part.strides[-1] == part.itemsize else xp.ascontiguousarray(part)


def stack_group(array: Array, nheads_kv: int) -> Array:
    """(heads, rows, dim) as (nheads_kv, group * rows, dim): one product serves all query heads of a kv head."""
    heads, rows, dim = array.shape
    return array.reshape(nheads_kv, heads // nheads_kv * rows, dim)


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftmaxRows:
    """Softmax of one block of rows."""

    probs: Array
    """fp64 (heads, rows, keys); hidden keys and fully masked rows hold exactly 0."""
    lse: Array
    """fp64 (heads, rows), natural log, sink included; -inf where there is neither a visible key nor a sink."""
    keep: Array | None
    """bool broadcastable to probs; None when nothing is hidden."""
    sink_probs: Array | None
    """fp64 (heads, rows): weight of the sink column."""
    softcap_slope: Array | None
    """fp64 like probs: d(capped score)/d(score), only where asked for."""
    finite: bool
    """False if a row is NaN because of a NaN or an infinity that it may attend to. Only looked at under a mask."""


def softmax_rows(
    q_rows: Array,
    keys: Array,
    block: RowBlock,
    options: AttentionOptions,
    extras: AttentionExtras,
    xp: Any,
    *,
    want_slope: bool = False,
) -> SoftmaxRows:
    """Scores, softcap, bias, mask and softmax of one block.

    Parameters
    ----------
    q_rows : fp64 (heads, rows, head_dim)
    keys : fp64 (kv_heads, keys, head_dim), the keys of `block.keys` only
    want_slope : bool
        Also return the derivative of softcap, which only the backward needs.
    """
    nheads, nrows = q_rows.shape[:2]
    kv_heads, nkeys = keys.shape[:2]
    scores = xp.matmul(stack_group(q_rows, kv_heads), keys.swapaxes(1, 2)).reshape(nheads, nrows, nkeys)
    scores *= options.softmax_scale
    slope = None
    if options.softcap:
        scores /= options.softcap
        if want_slope:
            # 1/cosh^2, not 1 - tanh^2: the difference cancels when the cap saturates.
            slope = 1.0 / xp.cosh(scores) ** 2
        scores = options.softcap * xp.tanh(scores)
    bias = bias_rows(options, extras, block, xp)
    if bias is not None:
        scores += bias
    keep = keep_rows(options, extras, block, xp)
    if keep is not None:
        scores = xp.where(keep, scores, -xp.inf)
    probs, lse, sink_probs = _softmax(scores, keep, _sink(extras, block, xp), xp)
    finite = keep is None or all_finite(lse[lse != -xp.inf])
    if not finite:
        # exp(-inf - NaN) is NaN, also at the hidden keys of a NaN row.
        probs = xp.where(keep, probs, 0.0)
    return SoftmaxRows(probs=probs, lse=lse, keep=keep, sink_probs=sink_probs, softcap_slope=slope, finite=finite)


def _sink(extras: AttentionExtras, block: RowBlock, xp: Any) -> Array | None:
    return None if extras.sink is None else extras.sink[block.heads].astype(xp.float64)[:, None, None]


def _softmax(scores: Array, keep: Array | None, sink: Array | None, xp: Any) -> tuple[Array, Array, Array | None]:
    """Softmax over the last axis, overwriting `scores`; hidden scores are -inf. Returns probs, lse, sink_probs."""
    heads, rows, nkeys = scores.shape
    nothing = xp.full((heads, rows, 1), -xp.inf)
    peak = scores.max(axis=-1, keepdims=True) if nkeys else nothing
    if sink is not None:
        peak = xp.maximum(peak, sink)
    empty = None
    if keep is not None or not nkeys:
        # Emptiness is read from the mask: a visible score may be -inf too, and softmax of only -inf is NaN.
        empty = ~keep.any(axis=-1, keepdims=True) if keep is not None and nkeys else nothing < 0
        peak = xp.where(empty & (peak == -xp.inf), 0.0, peak)
    scores -= peak
    weights = xp.exp(scores, out=scores)
    total = weights.sum(axis=-1, keepdims=True)
    sink_weight = None
    if sink is not None:
        sink_weight = xp.exp(sink - peak)
        total = total + sink_weight
    lse = (peak + xp.log(total))[..., 0]
    divisor = total if empty is None else xp.where(empty & (total == 0.0), 1.0, total)
    weights /= divisor
    return weights, lse, None if sink_weight is None else (sink_weight / divisor)[..., 0]
