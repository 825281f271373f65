"""Everything of a Call beside q, k, v, dout: masks, biases, sink, dropout, lengths, page table. Reads q and k only to
place the sink near the scores.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from verify.dtypes import float_format
from verify.layouts import poison_value
from verify.problem import AttentionProblem
from verify.recipes.draw import Draw, Float64, Operands

Array = NDArray[Any]

DEAD_ROW_SHARE = 1.0 / 16
"""Share of rows (or row blocks) of a drawn mask that see no key at all: random bits alone hardly ever give one."""
SURPLUS_PAGES = 2
"""Pages that no sequence uses; unused entries of the page table point at one of them."""
SINK_ROWS = 4
"""Query rows of a head that are looked at to place its sink."""


def draw_extras(draw: Draw, operands: Operands, *, poison: str) -> dict[str, Array]:
    """Extra arrays of the problem by name, with their final dtype and logical shape."""
    p = draw.problem
    rows = (p.nheads, p.total_q) if p.is_ragged else (p.batch, p.nheads, p.seqlen_q)
    found: dict[str, Array] = {"dlse": _packed_normal(draw, rows)}
    if p.pattern == "boolean":
        drawn = _keep_rows(draw, "mask", (p.batch, p.nheads, p.seqlen_q, p.seqlen_k), p.keep_fraction)
        found["mask"] = _outside_true(p, drawn if operands.mask is None else operands.mask.copy())
    if p.pattern == "block_sparse":
        blocks = (-(-p.seqlen_q // p.block_size[0]), -(-p.seqlen_k // p.block_size[1]))
        found["block_mask"] = _keep_rows(draw, "block_mask", (p.batch, p.nheads, *blocks), p.keep_fraction)
    if p.bias == "additive":
        found["bias"] = _bias(draw, poison)
    if p.bias == "alibi":
        found["alibi_slopes"] = np.exp2(-8.0 * (np.arange(p.nheads) + 1) / p.nheads).astype(np.float32)
    if p.sink:
        found["sink"] = _sink(draw, operands)
    if p.dropout_p > 0:
        keep = draw.uniform("dropout_keep", (p.batch, p.nheads, p.seqlen_q, p.seqlen_k)) >= p.dropout_p
        found["dropout_keep"] = _outside_true(p, keep)
    return found | _lengths(draw)


def _packed_normal(draw: Draw, rows: tuple[int, ...]) -> Array:
    """dlse ~ N(0, 1), drawn padded so that ragged and padded problems share values."""
    p = draw.problem
    padded = draw.normal("dlse", (p.batch, p.nheads, p.seqlen_q)).astype(np.float32)
    if p.is_ragged:
        parts = [padded[sequence, :, : p.lengths(sequence)[0]] for sequence in range(p.batch)]
        return np.ascontiguousarray(np.concatenate(parts, axis=1)).reshape(rows)
    return padded


def _keep_rows(draw: Draw, name: str, shape: tuple[int, ...], fraction: float) -> NDArray[np.bool_]:
    """Keep that fraction of the elements; below 1, some rows keep nothing."""
    keep = draw.uniform(name, shape) < fraction
    if fraction < 1.0:
        keep &= draw.uniform(f"{name}.rows", (*shape[:-1], 1)) >= DEAD_ROW_SHARE
    return keep


def _outside_true(p: AttentionProblem, keep: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """True outside the valid rows and keys: a kernel that trusts the mask alone reads what it must not."""
    for sequence in range(p.batch):
        rows, keys = p.lengths(sequence)
        keep[sequence, :, rows:] = True
        keep[sequence, :, :, keys:] = True
    return keep


def _bias(draw: Draw, poison: str) -> Array:
    """N(0, 1) in the storage dtype, -inf where it hides a key; poison where no sequence has a row and key."""
    p = draw.problem
    form = float_format(p.dtype)
    batch = 1 if p.bias_broadcast[0] else p.batch
    heads = 1 if p.bias_broadcast[1] else p.nheads
    bias = draw.normal("bias", (batch, heads, p.seqlen_q, p.seqlen_k)).astype(np.float32).astype(form.numpy_dtype)
    if p.bias_hidden > 0:
        shown = _keep_rows(draw, "bias.hidden", bias.shape, 1.0 - p.bias_hidden)
        bias = np.where(shown, bias, bias.dtype.type(-np.inf))
    used = np.zeros((batch, 1, p.seqlen_q, p.seqlen_k), dtype=bool)
    for sequence in range(p.batch):
        rows, keys = p.lengths(sequence)
        used[sequence % batch, :, :rows, :keys] = True
    return np.where(used, bias, poison_value(form.numpy_dtype, poison))


def _sink(draw: Draw, operands: Operands) -> Array:
    """N(0, 1) around the typical largest score of the head: a sink far from it would change nothing, or everything."""
    p = draw.problem
    centres = [_typical_maximum(p, operands.q, operands.k, head) for head in range(p.nheads)]
    return (np.array(centres) + draw.normal("sink", (p.nheads,))).astype(np.float32)


def _typical_maximum(p: AttentionProblem, q: Float64, k: Float64, head: int) -> float:
    """Mean over a few rows of the largest score of the first sequence with rows and keys, to a quarter unit."""
    for sequence in range(p.batch):
        rows, keys = p.lengths(sequence)
        if rows and keys:
            chosen = q[sequence, : rows : max(1, rows // SINK_ROWS), head]
            scores = p.softmax_scale * (chosen @ k[sequence, :keys, head // p.group].T)
            limit = p.softcap or np.inf
            # Rounded, so that the order of summation of the product cannot change the bits.
            return float(np.rint(4 * np.clip(scores.max(axis=1), -limit, limit).mean()) / 4)
    return 0.0


def _lengths(draw: Draw) -> dict[str, Array]:
    p = draw.problem
    found: dict[str, Array] = {}
    for name in ("cu_seqlens_q", "cu_seqlens_k", "seqlens_k"):
        value = getattr(p, name)
        if value is not None:
            found[name] = np.array(value, dtype=np.int32)
    if p.page_size:
        found["page_table"] = page_table(draw)
    return found


def page_table(draw: Draw) -> NDArray[np.int32]:
    """(batch, max pages) int32: the used pages in random order; unused entries name a page that nobody owns."""
    p = draw.problem
    width = -(-p.seqlen_k // p.page_size)
    counts = [-(-p.lengths(sequence)[1] // p.page_size) for sequence in range(p.batch)]
    order = np.argsort(draw.uniform("page_table", (sum(counts) + SURPLUS_PAGES,)), kind="stable").astype(np.int32)
    table = np.full((p.batch, width), order[-1], dtype=np.int32)
    starts = np.cumsum([0, *counts])
    for sequence, count in enumerate(counts):
        table[sequence, :count] = order[starts[sequence] : starts[sequence] + count]
    return table


def page_count(p: AttentionProblem) -> int:
    """Pages of the cache, unused ones included."""
    return sum(-(-p.lengths(sequence)[1] // p.page_size) for sequence in range(p.batch)) + SURPLUS_PAGES
