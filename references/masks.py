"""The only place that knows what a row may attend to and what is added to its scores.

Everything is answered for a `RowBlock`: some query heads and rows of one sequence against a range of its keys.
Not done here: scores, softmax, and any reading of q, k or v.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy

from references.options import Array, AttentionExtras, AttentionOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBlock:
    """Coordinates of a block of the score matrix inside one sequence."""

    batch: int
    heads: slice
    rows: slice
    keys: slice
    seqlen_q: int
    """Valid rows of this sequence; with seqlen_k it fixes the diagonal."""
    seqlen_k: int


def key_range(options: AttentionOptions, rows: slice, seqlen_q: int, seqlen_k: int) -> slice:
    """Keys that causality and the window leave to at least one row of `rows`; the rest need not be read."""
    offset = options.diagonal(seqlen_q, seqlen_k)
    left, right = options.window or (None, None)
    if options.causal:
        right = 0
    start, stop = 0, seqlen_k
    if right is not None:
        stop = min(stop, rows.stop + offset + right)
    if left is not None:
        start = max(start, rows.start + offset - left)
    stop = max(stop, 0)
    return slice(min(start, stop), stop)


def keep_rows(options: AttentionOptions, extras: AttentionExtras, block: RowBlock, xp: Any = numpy) -> Array | None:
    """Which keys each row may attend to.

    Returns
    -------
    bool array broadcastable to (heads, rows, keys) of the block, or None when nothing is hidden.
    """
    parts = _diagonal_bounds(options, block, xp)
    if extras.mask is not None:
        parts.append(broadcast_view(extras.mask, block))
    if extras.block_mask is not None and extras.block_size is not None:
        parts.append(_block_view(extras.block_mask, extras.block_size, block, xp))
    if extras.bias is not None:
        # A bias of -inf is the additive way to write a mask, so such a key counts as hidden, not as a weight of 0.
        parts.append(broadcast_view(extras.bias, block) != -xp.inf)
    if not parts:
        return None
    keep = parts[0]
    for part in parts[1:]:
        keep = keep & part
    return keep


def bias_rows(options: AttentionOptions, extras: AttentionExtras, block: RowBlock, xp: Any = numpy) -> Array | None:
    """What is added to the scores after softcap: fp64 broadcastable to (heads, rows, keys), or None."""
    bias = None
    if extras.bias is not None:
        bias = broadcast_view(extras.bias, block).astype(xp.float64)
    if extras.alibi_slopes is not None:
        slopes = extras.alibi_slopes if extras.alibi_slopes.ndim == 1 else extras.alibi_slopes[block.batch]
        slopes = slopes[block.heads].astype(xp.float64)[:, None, None]
        level, keys = _level_and_keys(options, block, xp)
        alibi = -slopes * xp.abs(level - keys).astype(xp.float64)
        bias = alibi if bias is None else bias + alibi
    return bias


def dropout_rows(options: AttentionOptions, extras: AttentionExtras, block: RowBlock, xp: Any = numpy) -> Array | None:
    """Factors on the probabilities, 0 or 1/(1-p): fp64 (heads, rows, keys), or None without dropout."""
    if extras.dropout_keep is None:
        return None
    kept = extras.dropout_keep[block.batch, block.heads, block.rows, block.keys]
    return kept.astype(xp.float64) * (1.0 / (1.0 - options.dropout_p))


def broadcast_view(array: Array, block: RowBlock) -> Array:
    """The part of an array broadcastable to (batch, nheads, seqlen_q, seqlen_k) that belongs to the block, 3-D."""
    return array.reshape((1,) * (4 - array.ndim) + tuple(array.shape))[broadcast_index(array.shape, block)]


def broadcast_index(shape: tuple[int, ...], block: RowBlock) -> tuple[int | slice, ...]:
    """Index of the block in a broadcastable array of this shape, once it has been given four axes."""
    batch, heads, rows, keys = (1,) * (4 - len(shape)) + tuple(shape)
    everything = slice(None)
    return (
        0 if batch == 1 else block.batch,
        everything if heads == 1 else block.heads,
        everything if rows == 1 else block.rows,
        everything if keys == 1 else block.keys,
    )


def dense_keep(
    options: AttentionOptions,
    extras: AttentionExtras,
    batch: int,
    seqlen_q: int,
    seqlen_k: int,
    nheads: int,
    xp: Any = numpy,
) -> Array:
    """Keep-mask of one whole sequence of valid lengths seqlen_q, seqlen_k: bool (nheads, seqlen_q, seqlen_k)."""
    keep = keep_rows(options, extras, _whole(batch, seqlen_q, seqlen_k, nheads), xp)
    shape = (nheads, seqlen_q, seqlen_k)
    return xp.ones(shape, dtype=bool) if keep is None else xp.broadcast_to(keep, shape)


def dense_bias(
    options: AttentionOptions,
    extras: AttentionExtras,
    batch: int,
    seqlen_q: int,
    seqlen_k: int,
    nheads: int,
    xp: Any = numpy,
) -> Array | None:
    """Additive bias (with ALiBi) of one whole sequence: fp64 (nheads, seqlen_q, seqlen_k), or None."""
    bias = bias_rows(options, extras, _whole(batch, seqlen_q, seqlen_k, nheads), xp)
    return None if bias is None else xp.broadcast_to(bias, (nheads, seqlen_q, seqlen_k))


def _whole(batch: int, seqlen_q: int, seqlen_k: int, nheads: int) -> RowBlock:
    return RowBlock(
        batch=batch,
        heads=slice(0, nheads),
        rows=slice(0, seqlen_q),
        keys=slice(0, seqlen_k),
        seqlen_q=seqlen_q,
        seqlen_k=seqlen_k,
    )


def _level_and_keys(options: AttentionOptions, block: RowBlock, xp: Any) -> tuple[Array, Array]:
    """Key on the diagonal of each row, int (rows, 1), and the key numbers, int (1, keys)."""
    offset = options.diagonal(block.seqlen_q, block.seqlen_k)
    level = xp.arange(block.rows.start + offset, block.rows.stop + offset)
    return level[:, None], xp.arange(block.keys.start, block.keys.stop)[None, :]


def _diagonal_bounds(options: AttentionOptions, block: RowBlock, xp: Any) -> list[Array]:
    """Causality and window as comparisons with the diagonal, without those that hide nothing in this block."""
    left, right = options.window or (None, None)
    if options.causal:
        right = 0
    offset = options.diagonal(block.seqlen_q, block.seqlen_k)
    nearest = block.rows.start + offset - (block.keys.stop - 1)
    farthest = block.rows.stop - 1 + offset - block.keys.start
    cuts_right = right is not None and nearest < -right
    cuts_left = left is not None and farthest > left
    if not (cuts_right or cuts_left):
        return []
    level, keys = _level_and_keys(options, block, xp)
    bounds = []
    if cuts_right and right is not None:
        bounds.append((keys <= level + right)[None])
    if cuts_left and left is not None:
        bounds.append((keys >= level - left)[None])
    return bounds


def _block_view(block_mask: Array, block_size: tuple[int, int], block: RowBlock, xp: Any) -> Array:
    batch = 0 if block_mask.shape[0] == 1 else block.batch
    heads = slice(None) if block_mask.shape[1] == 1 else block.heads
    rows = xp.arange(block.rows.start, block.rows.stop) // block_size[0]
    keys = xp.arange(block.keys.start, block.keys.stop) // block_size[1]
    return block_mask[batch, heads][:, rows][:, :, keys]
