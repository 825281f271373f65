"""Forward attention in fp64: out and lse, in blocks of query rows, so memory is linear in the sequence length.

Plain formulas (scores, softmax, weighted sum), no online rescaling: that is `blockwise.py`, which checks this one.
"""

from __future__ import annotations

from typing import Any

import numpy

from references.masks import dropout_rows
from references.nonfinite import all_finite, visible_matmul
from references.options import NO_EXTRAS, Array, AttentionExtras, AttentionOptions
from references.results import AttentionResult
from references.rows import head_groups, head_major, softmax_rows, stack_group
from references.shapes import check_shapes

__all__ = ["AttentionResult", "attention"]


def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    options: AttentionOptions,
    extras: AttentionExtras = NO_EXTRAS,
    xp: Any = numpy,
    rows_per_chunk: int | None = None,
) -> AttentionResult:
    """Attention of exactly the given numbers in fp64.

    Parameters
    ----------
    q : float array, shape (batch, seqlen_q, nheads, head_dim)
        Any float dtype and any strides; values are widened exactly.
    k : float array, shape (batch, seqlen_k, nheads_kv, head_dim)
        nheads is a multiple of nheads_kv; query head h uses key head h // (nheads // nheads_kv).
    v : float array, shape (batch, seqlen_k, nheads_kv, head_dim_v)
    options, extras : see `references.options`
    xp : namespace
        NumPy, or CuPy for arrays on a GPU.
    rows_per_chunk : int, optional
        Query rows worked on at once. The default keeps a block of scores at `BLOCK_BYTES`.

    Returns
    -------
    AttentionResult
        A row without a visible key: out = 0, and lse = -inf, or the sink if there is one.

    Raises
    ------
    ValueError
        Shapes that do not fit together.

    Notes
    -----
    S = softcap(scale * Q K^T) + bias;  L_i = log(sum_j exp(S_ij) + exp(sink));  O_i = sum_j Z_ij exp(S_ij - L_i) V_j,
    j over the visible keys and Z the dropout factors.

    A NaN, and an infinity in V, reaches every row that may attend to it, as the IEEE sum would have it, and no other
    row. An infinity in Q or K follows IEEE too: a score of -inf is a weight of 0, one of +inf makes the row NaN, and
    softcap turns either into a finite score.

    References
    ----------
    Vaswani et al., "Attention Is All You Need", 2017, equation 1.
    """
    sizes = check_shapes(q, k, v, options, extras)
    out = xp.zeros((sizes.batch, sizes.seqlen_q, sizes.nheads, sizes.head_dim_v))
    lse = xp.full((sizes.batch, sizes.nheads, sizes.seqlen_q), -xp.inf)
    # Non-finite inputs are legal data here; their NaNs must not become warnings.
    with numpy.errstate(all="ignore"):
        for group in head_groups(sizes, rows_per_chunk):
            keys = head_major(k, group.batch, group.keys, group.kv_heads, xp)
            values = head_major(v, group.batch, group.keys, group.kv_heads, xp)
            for block in group.blocks(options):
                q_rows = head_major(q, block.batch, block.rows, block.heads, xp)
                soft = softmax_rows(q_rows, keys[:, block.keys], block, options, extras, xp)
                probs = soft.probs
                dropout = dropout_rows(options, extras, block, xp)
                if dropout is not None:
                    probs *= dropout
                rows = _weighted_sum(probs, soft.keep, values[:, block.keys], xp)
                out[block.batch, block.rows, block.heads] = rows.swapaxes(0, 1)
                lse[block.batch, block.heads, block.rows] = soft.lse
    return AttentionResult(out=out, lse=lse)


def _weighted_sum(probs: Array, keep: Array | None, values: Array, xp: Any) -> Array:
    """probs @ values per query head: (heads, rows, keys), (kv_heads, keys, head_dim_v) -> (heads, rows, head_dim_v)."""
    stacked = stack_group(probs, values.shape[0])
    if keep is None or all_finite(values):
        total = xp.matmul(stacked, values)
    else:
        admitted = stack_group(xp.broadcast_to(keep, probs.shape), values.shape[0])
        total = visible_matmul(stacked, admitted, values, xp)
    return total.reshape(probs.shape[0], probs.shape[1], values.shape[2])
