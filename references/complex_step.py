"""Derivatives of the forward by the complex step: no hand-derived backward and no subtraction.

Holds its own forward, written for complex operands. Only which keys are visible, and ALiBi, come from `masks.py`:
neither is differentiated. Operands must be finite, apart from a bias of -inf.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from references.masks import dense_bias, dense_keep
from references.options import NO_EXTRAS, Array, AttentionExtras, AttentionOptions
from references.results import Gradients
from references.shapes import Sizes, check_shapes, require_shape

STEP = 2.0**-200
"""A power of two, so that dividing by it is exact; its square vanishes beside 1, so truncation is nil."""


def complex_step_derivative(
    q: Array,
    k: Array,
    v: Array,
    dout: Array,
    direction: Mapping[str, Array],
    *,
    options: AttentionOptions,
    extras: AttentionExtras = NO_EXTRAS,
    dlse: Array | None = None,
) -> float:
    """Derivative of <dout, out> + <dlse, lse> along `direction`.

    Parameters
    ----------
    q, k, v, dout, options, extras, dlse : as in `attention_backward`
    direction : mapping of "q", "k", "v", "bias", "sink" to float arrays
        Each in the shape of its operand. Operands that are not named stay put.

    Returns
    -------
    float
        Equals the sum over the named operands of <gradient, direction>.

    Raises
    ------
    ValueError
        A direction names no operand or has another shape.

    Notes
    -----
    f'(x) u = Im f(x + i h u) / h + O(h^2) for analytic f. Attention is analytic, provided that the maximum subtracted
    before exp depends on real parts only, which shift invariance permits.

    References
    ----------
    Squire and Trapp, "Using complex variables to estimate derivatives of real functions", 1998, equation 5.
    """
    sizes = check_shapes(q, k, v, options, extras)
    operands: dict[str, Array] = {"q": q, "k": k, "v": v, "bias": extras.bias, "sink": extras.sink}
    moved: dict[str, Array] = {
        name: None if x is None else np.asarray(x, dtype=np.float64) for name, x in operands.items()
    }
    for name, change in direction.items():
        if moved.get(name) is None:
            present = [key for key, x in moved.items() if x is not None]
            raise ValueError(f"direction: {name!r}, expected names among {present}")
        require_shape(f"direction[{name!r}]", change, moved[name].shape)
        moved[name] = moved[name] + 1j * STEP * np.asarray(change, dtype=np.float64)
    return _imaginary_objective(moved, dout, dlse, sizes, options, extras) / STEP


def complex_step_gradients(
    q: Array,
    k: Array,
    v: Array,
    dout: Array,
    *,
    options: AttentionOptions,
    extras: AttentionExtras = NO_EXTRAS,
    dlse: Array | None = None,
) -> Gradients:
    """Every gradient element by element: one forward each, so for tiny problems only. Operands as above."""
    operands: dict[str, Array] = {"q": q, "k": k, "v": v, "bias": extras.bias, "sink": extras.sink}

    def gradient(name: str) -> Array | None:
        if operands[name] is None:
            return None
        result = np.zeros(operands[name].shape)
        for index in np.ndindex(result.shape):
            unit = np.zeros(result.shape)
            unit[index] = 1.0
            result[index] = complex_step_derivative(
                q, k, v, dout, {name: unit}, options=options, extras=extras, dlse=dlse
            )
        return result

    return Gradients(
        dq=gradient("q"), dk=gradient("k"), dv=gradient("v"), dbias=gradient("bias"), dsink=gradient("sink")
    )


def _imaginary_objective(
    moved: Mapping[str, Array],
    dout: Array,
    dlse: Array | None,
    sizes: Sizes,
    options: AttentionOptions,
    extras: AttentionExtras,
) -> float:
    """Im(<dout, out> + <dlse, lse>) with complex operands."""
    full = (sizes.batch, sizes.nheads, sizes.seqlen_q, sizes.seqlen_k)
    bias = None if moved["bias"] is None else np.broadcast_to(moved["bias"], full)
    objective = 0.0
    for b, (rows, keys) in enumerate(zip(sizes.lengths_q, sizes.lengths_k, strict=True)):
        keep = dense_keep(options, extras, b, rows, keys, sizes.nheads)
        fixed = dense_bias(options, replace(extras, bias=None), b, rows, keys, sizes.nheads)
        for h in range(sizes.nheads):
            g = h // sizes.group
            scores = _scores(moved["q"][b, :rows, h], moved["k"][b, :keys, g], options)
            if bias is not None:
                scores = scores + bias[b, h, :rows, :keys]
            if fixed is not None:
                scores = scores + fixed[h]
            sink = None if moved["sink"] is None else moved["sink"][h]
            out, lse = _attend(scores, keep[h], sink, moved["v"][b, :keys, g], _factors(options, extras, b, h))
            objective += float(np.sum(np.asarray(dout[b, :rows, h], dtype=np.float64) * out.imag))
            if dlse is not None:
                objective += float(np.sum(np.asarray(dlse[b, h, :rows], dtype=np.float64) * lse.imag))
    return objective


def _scores(q_rows: Array, keys: Array, options: AttentionOptions) -> Array:
    scores = options.softmax_scale * (q_rows @ keys.T)
    return scores if options.softcap == 0 else options.softcap * np.tanh(scores / options.softcap)


def _factors(options: AttentionOptions, extras: AttentionExtras, b: int, h: int) -> Array | None:
    return None if extras.dropout_keep is None else extras.dropout_keep[b, h] / (1 - options.dropout_p)


def _attend(
    scores: Array, keep: Array, sink: Array | None, values: Array, factors: Array | None
) -> tuple[Array, Array]:
    """Complex out (rows, head_dim_v) and lse (rows,), 0 for rows with nothing in the denominator."""
    peak = np.max(scores.real, axis=1, initial=-np.inf, where=keep)
    if sink is not None:
        peak = np.maximum(peak, sink.real)
    peak = np.where(np.isneginf(peak), 0.0, peak)
    weights = np.exp(np.where(keep, scores - peak[:, None], -np.inf))
    total = weights.sum(axis=1)
    if sink is not None:
        total = total + np.exp(sink - peak)
    total = np.where(total == 0, 1.0, total)
    probs = weights / total[:, None]
    if factors is not None:
        probs = probs * factors[: probs.shape[0], : probs.shape[1]]
    return probs @ values, peak + np.log(total)
