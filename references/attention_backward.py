"""Analytic gradients of attention in fp64, written from the formulas, in blocks of query rows.

Recomputes its own softmax: no output of a kernel ever enters. `complex_step.py` and `central_difference.py` check it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy

from references.masks import RowBlock, broadcast_index, dropout_rows
from references.nonfinite import all_finite, visible_matmul
from references.options import NO_EXTRAS, Array, AttentionExtras, AttentionOptions
from references.results import Gradients
from references.rows import SoftmaxRows, head_groups, head_major, softmax_rows, stack_group
from references.shapes import check_shapes, require_shape

__all__ = ["Gradients", "attention_backward"]


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
    require_shape("dout", dout, (sizes.batch, sizes.seqlen_q, sizes.nheads, sizes.head_dim_v))
    if dlse is not None:
        require_shape("dlse", dlse, (sizes.batch, sizes.nheads, sizes.seqlen_q))
    grads = _zero_gradients(q, k, v, extras, xp)
    with numpy.errstate(all="ignore"):
        for group in head_groups(sizes, rows_per_chunk):
            keys = head_major(k, group.batch, group.keys, group.kv_heads, xp)
            values = head_major(v, group.batch, group.keys, group.kv_heads, xp)
            dkeys, dvalues = xp.zeros_like(keys), xp.zeros_like(values)
            for block in group.blocks(options):
                operands = _Operands(
                    q=head_major(q, block.batch, block.rows, block.heads, xp),
                    k=keys[:, block.keys],
                    v=values[:, block.keys],
                    dout=head_major(dout, block.batch, block.rows, block.heads, xp),
                    dlse=None if dlse is None else dlse[block.batch, block.heads, block.rows].astype(xp.float64),
                )
                dq_rows, dk_part, dv_part = _block_gradients(operands, block, options, extras, grads, xp)
                grads.dq[block.batch, block.rows, block.heads] = dq_rows.swapaxes(0, 1)
                dkeys[:, block.keys] += dk_part
                dvalues[:, block.keys] += dv_part
            grads.dk[group.batch, group.keys, group.kv_heads] = dkeys.swapaxes(0, 1)
            grads.dv[group.batch, group.keys, group.kv_heads] = dvalues.swapaxes(0, 1)
    return grads


@dataclass(frozen=True, slots=True, kw_only=True)
class _Operands:
    """fp64 operands of one block: rows of (heads, rows, dim), keys of (kv_heads, keys, dim), dlse (heads, rows)."""

    q: Array
    k: Array
    v: Array
    dout: Array
    dlse: Array | None

    def finite(self) -> bool:
        arrays = (self.q, self.k, self.v, self.dout)
        return all_finite(*arrays) and (self.dlse is None or all_finite(self.dlse))


def _zero_gradients(q: Array, k: Array, v: Array, extras: AttentionExtras, xp: Any) -> Gradients:
    return Gradients(
        dq=xp.zeros(q.shape),
        dk=xp.zeros(k.shape),
        dv=xp.zeros(v.shape),
        dbias=None if extras.bias is None else xp.zeros(extras.bias.shape),
        dsink=None if extras.sink is None else xp.zeros(extras.sink.shape),
    )


def _block_gradients(
    operands: _Operands,
    block: RowBlock,
    options: AttentionOptions,
    extras: AttentionExtras,
    grads: Gradients,
    xp: Any,
) -> tuple[Array, Array, Array]:
    """dq rows, and this block's terms of dk and dv; adds the block's terms to grads.dbias and grads.dsink."""
    soft = softmax_rows(operands.q, operands.k, block, options, extras, xp, want_slope=True)
    product = _Products(soft, operands, xp)
    dropout = dropout_rows(options, extras, block, xp)
    weights = soft.probs if dropout is None else soft.probs * dropout
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
    return product.onto_rows(dscores, operands.k), product.onto_keys(dscores, operands.q), dv_part


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


class _Products:
    """The four matrix products of one block, guarded against hidden NaNs only where the operands hold any."""

    def __init__(self, soft: SoftmaxRows, operands: _Operands, xp: Any) -> None:
        self._operands = operands
        self._kv_heads = operands.k.shape[0]
        self._shape = soft.probs.shape
        self._xp = xp
        self.guarded = soft.keep is not None and not (soft.finite and operands.finite())
        self._keep = stack_group(xp.broadcast_to(soft.keep, self._shape), self._kv_heads) if self.guarded else None

    def dprobs(self) -> Array:
        """dO V^T: (heads, rows, keys)."""
        dout = stack_group(self._operands.dout, self._kv_heads)
        return self._xp.matmul(dout, self._operands.v.swapaxes(1, 2)).reshape(self._shape)

    def onto_rows(self, weights: Array, values: Array) -> Array:
        """Sum over keys: (heads, rows, keys), (kv_heads, keys, dim) -> (heads, rows, dim)."""
        total = self._matmul(stack_group(weights, self._kv_heads), self._keep, values)
        return total.reshape(*self._shape[:2], values.shape[2])

    def onto_keys(self, weights: Array, values: Array) -> Array:
        """Sum over rows and the heads of a group: (heads, rows, keys), (heads, rows, dim) -> (kv_heads, keys, dim)."""
        admitted = None if self._keep is None else self._keep.swapaxes(1, 2)
        stacked = stack_group(weights, self._kv_heads).swapaxes(1, 2)
        return self._matmul(stacked, admitted, stack_group(values, self._kv_heads))

    def _matmul(self, weights: Array, keep: Array | None, values: Array) -> Array:
        if keep is None:
            return self._xp.matmul(weights, values)
        return visible_matmul(weights, keep, values, self._xp)
