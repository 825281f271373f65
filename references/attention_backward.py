"""Analytic gradients of attention in fp64, written from the formulas, in blocks of query rows.

Recomputes its own softmax: no output of a kernel ever enters. `complex_step.py` and `central_difference.py` check it.
"""

from __future__ import annotations

from typing import Any

import numpy

from references.masks import RowBlock, broadcast_index, dropout_rows
from references.options import NO_EXTRAS, Array, AttentionExtras, AttentionOptions
from references.products import BlockOperands, BlockProducts
from references.results import AttentionResult, Gradients
from references.rows import SoftmaxRows, head_groups, head_major, softmax_rows
from references.shapes import Sizes, check_shapes, require_shape

__all__ = ["Gradients", "attention_backward", "attention_with_gradients"]


def attention_backward(
    q: Array,
    k: Array,
    v: Array,
    dout: Array,
    *,
    options: AttentionOptions,
    extras: AttentionExtras = NO_EXTRAS,
    dlse: Array | None = None,
    xp: Any = numpy,
    rows_per_chunk: int | None = None,
) -> Gradients:
    """Gradients of attention at exactly the given numbers in fp64.

    Parameters
    ----------
    q, k, v, options, extras, xp, rows_per_chunk : see `references.attention.attention`
    dout : float array, shape (batch, seqlen_q, nheads, head_dim_v)
        Upstream gradient of out.
    dlse : float array, shape (batch, nheads, seqlen_q), optional
        Upstream gradient of lse; None means zero.

    Returns
    -------
    Gradients
        Exactly 0 for fully masked rows, hidden keys and padding.

    Raises
    ------
    ValueError
        Shapes that do not fit together.

    Notes
    -----
    With P the probabilities before dropout and Z the dropout factors:
    dV = (Z P)^T dO;  dP = Z (dO V^T);  delta_i = sum_j P_ij dP_ij = <dO_i, O_i>;  dS = P (dP - delta + dL);
    dbias = dS;  dsink = sum_i P_sink,i (dL_i - delta_i);  with softcap dS is multiplied by 1/cosh^2;
    dQ = scale dS K;  dK = scale dS^T Q.

    References
    ----------
    Dao et al., "FlashAttention", 2022, appendix B.2.
    """
    sizes = check_shapes(q, k, v, options, extras)
    return _run(q, k, v, dout, dlse, sizes, options, extras, None, xp, rows_per_chunk)


def attention_with_gradients(
    q: Array,
    k: Array,
    v: Array,
    dout: Array,
    *,
    options: AttentionOptions,
    extras: AttentionExtras = NO_EXTRAS,
    dlse: Array | None = None,
    xp: Any = numpy,
    rows_per_chunk: int | None = None,
) -> tuple[AttentionResult, Gradients]:
    """Forward and backward of one softmax: what `attention` and `attention_backward` return, a third sooner."""
    sizes = check_shapes(q, k, v, options, extras)
    result = AttentionResult(
        out=xp.zeros((sizes.batch, sizes.seqlen_q, sizes.nheads, sizes.head_dim_v)),
        lse=xp.full((sizes.batch, sizes.nheads, sizes.seqlen_q), -xp.inf),
    )
    return result, _run(q, k, v, dout, dlse, sizes, options, extras, result, xp, rows_per_chunk)


def _run(
    q: Array,
    k: Array,
    v: Array,
    dout: Array,
    dlse: Array | None,
    sizes: Sizes,
    options: AttentionOptions,
    extras: AttentionExtras,
    result: AttentionResult | None,
    xp: Any,
    rows_per_chunk: int | None,
) -> Gradients:
    """Gradients of every block; also fills `result` if there is one."""
    require_shape("dout", dout, (sizes.batch, sizes.seqlen_q, sizes.nheads, sizes.head_dim_v))
    if dlse is not None:
        require_shape("dlse", dlse, (sizes.batch, sizes.nheads, sizes.seqlen_q))
    grads = _zero_gradients(q, k, v, extras, xp)
    # Non-finite inputs are legal data here; their NaNs must not become warnings.
    with numpy.errstate(all="ignore"):
        for group in head_groups(sizes, rows_per_chunk):
            keys = head_major(k, group.batch, group.keys, group.kv_heads, xp)
            values = head_major(v, group.batch, group.keys, group.kv_heads, xp)
            dkeys, dvalues = xp.zeros_like(keys), xp.zeros_like(values)
            for block in group.blocks(options):
                operands = BlockOperands(
                    q=head_major(q, block.batch, block.rows, block.heads, xp),
                    k=keys[:, block.keys],
                    v=values[:, block.keys],
                    dout=head_major(dout, block.batch, block.rows, block.heads, xp),
                    dlse=None if dlse is None else dlse[block.batch, block.heads, block.rows].astype(xp.float64),
                )
                dk_part, dv_part = _block_gradients(operands, block, options, extras, grads, result, xp)
                dkeys[:, block.keys] += dk_part
                dvalues[:, block.keys] += dv_part
            grads.dk[group.batch, group.keys, group.kv_heads] = dkeys.swapaxes(0, 1)
            grads.dv[group.batch, group.keys, group.kv_heads] = dvalues.swapaxes(0, 1)
    return grads


def _zero_gradients(q: Array, k: Array, v: Array, extras: AttentionExtras, xp: Any) -> Gradients:
    return Gradients(
        dq=xp.zeros(q.shape),
        dk=xp.zeros(k.shape),
        dv=xp.zeros(v.shape),
        dbias=None if extras.bias is None else xp.zeros(extras.bias.shape),
        dsink=None if extras.sink is None else xp.zeros(extras.sink.shape),
    )


def _block_gradients(
    operands: BlockOperands,
    block: RowBlock,
    options: AttentionOptions,
    extras: AttentionExtras,
    grads: Gradients,
    result: AttentionResult | None,
    xp: Any,
) -> tuple[Array, Array]:
    """This block's terms of dk and dv (kv_heads, keys, dim); writes its dq, dbias, dsink, and out and lse if asked."""
    soft = softmax_rows(operands.q, operands.k, block, options, extras, xp, want_slope=True)
    product = BlockProducts(soft, operands, xp)
    dropout = dropout_rows(options, extras, block, xp)
    weights = soft.probs if dropout is None else soft.probs * dropout
    if result is not None:
        result.out[block.batch, block.rows, block.heads] = product.onto_rows(weights, operands.v).swapaxes(0, 1)
        result.lse[block.batch, block.heads, block.rows] = soft.lse
    dv_part = product.onto_keys(weights, operands.dout)
    dscores = product.dprobs()
    if dropout is not None:
        dscores *= dropout
    delta = _score_gradient(dscores, soft, operands.dlse, hide=product.guarded, xp=xp)
    if grads.dsink is not None:
        # The sink's value is 0, so its dP is 0.
        shift = -delta if operands.dlse is None else operands.dlse - delta
        grads.dsink[block.heads] += (soft.sink_probs * shift).sum(axis=-1)
    if grads.dbias is not None:
        _add_to_bias(grads.dbias, dscores, block)
    if soft.softcap_slope is not None:
        dscores *= soft.softcap_slope
        if product.guarded:
            dscores = xp.where(soft.keep, dscores, 0.0)
    dscores *= options.softmax_scale
    grads.dq[block.batch, block.rows, block.heads] = product.onto_rows(dscores, operands.k).swapaxes(0, 1)
    return product.onto_keys(dscores, operands.q), dv_part


def _score_gradient(dprobs: Array, soft: SoftmaxRows, dlse: Array | None, *, hide: bool, xp: Any) -> Array:
    """Turn dP into dS in place; return delta (heads, rows)."""
    probs = soft.probs
    if hide:
        dprobs[...] = xp.where(soft.keep, dprobs, 0.0)
    # From P and dP, not from dO and O: a row with one visible key then gives dS = 0 exactly.
    dprobs *= probs
    delta = dprobs.sum(axis=-1)
    shift = delta if dlse is None else delta - dlse
    dprobs -= probs * shift[..., None]
    if hide:
        dprobs[...] = xp.where(soft.keep, dprobs, 0.0)
    return delta


def _add_to_bias(dbias: Array, dscores: Array, block: RowBlock) -> None:
    shape = dbias.shape
    view = dbias.reshape((1,) * (4 - len(shape)) + tuple(shape))[broadcast_index(shape, block)]
    for axis in range(3):
        if view.shape[axis] == 1 and dscores.shape[axis] != 1:
            dscores = dscores.sum(axis=axis, keepdims=True)
    view += dscores
