"""Error of dS of every weight, which dq, dk, dbias and dsink are sums of.

Splits it into what is independent from weight to weight, what may be fully correlated, and what is common to a row (the
errors of lse and of delta). Formulas: docs/tolerances.md, section Backward.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verify.dense import Float64
from verify.dtypes import float_format
from verify.tolerance.forward_terms import ForwardBlock
from verify.tolerance.operands import Operands, Scaled
from verify.tolerance.probs_rounding import rounding_bound, rounding_variance
from verify.tolerance.roundings import DETERMINED, KAPPA_SQ, Real, Roundings, U, half_ulp, inflation
from verify.tolerance.scores import RowMaxima, ScoreBlock


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowErrors:
    """What is common to the weights of a row in the backward, (heads, rows) fp64. unit = scale of dP."""

    unit: float
    delta: Float64
    """rowsum(dO * O), in units of `unit`."""
    lse_variance: Float64
    """Variance of the stored lse as the backward subtracts it, units of U^2."""
    lse_hard: Float64
    """Bound on its correlated error, units of U."""
    lse_worst: Float64
    """Bound on all of it, absolute."""
    delta_variance: Float64
    """Units of U^2 and unit^2."""
    delta_hard: Float64
    """Units of U and unit."""
    delta_worst: Float64
    """Units of unit."""
    delta_overflows: Real
    """bool: delta may be infinite or NaN."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Products:
    """dP and dS of a block in units of `unit`; float32 (heads, rows, keys)."""

    unit: float
    dprobs: Real
    """Z dP."""
    magnitude: Real
    """Z |dO||V|^T."""
    centred: Real
    """G = Z dP - delta + dlse."""
    centred_abs: Real
    dlse: Real | float
    """|dlse|, (heads, rows, 1)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GradientErrors:
    """Errors of dS of a block; float32 (heads, rows, keys), before the factor of the softcap unless said."""

    dscores: Real
    """|dS|."""
    dscores_sloped: Real
    """|dS| times the slope of the softcap: what dq and dk see."""
    slope: Real | float
    inflation: Real
    """expm1(x)/x at the confidence's error x of the recomputed exponent."""
    exponent_variance: Real
    """Of the recomputed P, units of U^2."""
    exponent_hard: Real
    """Units of U."""
    independent: Real
    """Variance of sloped dS apart from the row's errors, units of U^2 unit^2."""
    unsloped: Real
    """The same without slope and without the rounding of dS, for dbias."""
    hard: Real
    """Bound on the correlated error of sloped dS, units of U unit."""
    worst_exponent: Real
    """expm1 of the worst exponent error."""
    worst: Real
    """Bound on the error of sloped dS apart from delta's, units of unit."""
    uncheckable_weight: Real | None
    """bool: the recomputed P is not determined, or its score may overflow."""
    uncheckable: Real | None
    """bool: nor is dS, which may overflow its format."""


def products(ops: Operands, block: ScoreBlock, dout: Scaled) -> Products:
    """dP, |dO||V|^T and G of a block."""
    delta = (ops.out[:, block.rows] * (dout.values[:, block.rows].astype(np.float64))).sum(axis=-1) * dout.unit
    dlse = None if ops.dlse is None else ops.dlse[:, block.rows]
    raw_unit = dout.unit * ops.v.unit
    unit = _unit(ops, dout, raw_unit)
    dprobs = ops.scores(dout.values[:, block.rows], ops.v.values[:, block.keys])
    magnitude = ops.scores(dout.magnitude[:, block.rows], ops.v.magnitude[:, block.keys])
    ratio = np.float32(raw_unit / unit)
    factor = ratio if block.dropout is None else block.dropout * ratio
    dprobs *= factor
    magnitude *= factor
    shift = delta if dlse is None else delta - dlse
    centred = dprobs - (shift / unit)[..., None].astype(np.float32)
    return Products(
        unit=unit,
        dprobs=dprobs,
        magnitude=magnitude,
        centred=centred,
        centred_abs=np.abs(centred),
        dlse=0.0 if dlse is None else (np.abs(dlse) / unit)[..., None].astype(np.float32),
    )


def _unit(ops: Operands, dout: Scaled, raw_unit: float) -> float:
    """Power of two near the largest |dP| and |dlse|, so that squares stay in the range of fp32."""
    largest = 0.0 if ops.dlse is None else float(np.abs(ops.dlse).max(initial=0.0))
    return max(raw_unit, float(2.0 ** np.ceil(np.log2(largest))) if largest > 0 else 0.0)


def row_errors(
    ops: Operands,
    rounds: Roundings,
    block: ScoreBlock,
    maxima: RowMaxima,
    forward: ForwardBlock,
    product: Products,
) -> RowErrors:
    """Errors of lse and delta for rows whose block spans all keys."""
    assert ops.dout is not None
    dout = ops.dout.values[:, block.rows].astype(np.float64) * ops.dout.unit
    out = ops.out[:, block.rows]
    lse = np.abs(maxima.lse)
    delta = (dout * out).sum(axis=-1)
    stored = half_ulp(rounds.lse, maxima.lse) if rounds.arithmetic.lse_stored else 0.0
    lse_variance = forward.lse_variance + KAPPA_SQ * 3.0 * lse**2
    delta_abs = (np.abs(dout) * np.abs(out)).sum(axis=-1)
    variance, hard, worst = _delta_errors(ops, rounds, block, forward, product, dout, delta_abs)
    if rounds.arithmetic.delta_from == "dprobs":
        variance = variance + lse_variance * (delta / product.unit) ** 2
        hard = hard + (forward.lse_hard + stored) / U * np.abs(delta) / product.unit
    if ops.dlse is not None:
        variance = variance + KAPPA_SQ * ((np.abs(delta) + np.abs(ops.dlse[:, block.rows])) / product.unit) ** 2
    return RowErrors(
        unit=product.unit,
        delta=delta / product.unit,
        lse_variance=np.where(maxima.alive, lse_variance, 0.0),
        lse_hard=np.where(maxima.alive, (forward.lse_hard + stored) / U, 0.0),
        lse_worst=np.where(maxima.alive, forward.lse_worst + stored + 3.0 * U * lse, 0.0),
        delta_variance=variance,
        delta_hard=hard,
        delta_worst=worst,
        delta_overflows=forward.out_overflows if rounds.arithmetic.delta_from == "out" else np.isinf(worst),
    )


def _delta_errors(
    ops: Operands,
    rounds: Roundings,
    block: ScoreBlock,
    forward: ForwardBlock,
    product: Products,
    dout: Float64,
    delta_abs: Float64,
) -> tuple[Float64, Float64, Float64]:
    """Variance (U^2 unit^2), hard bound (U unit) and worst case (unit) of delta."""
    unit, out = product.unit, ops.out[:, block.rows]
    from_probs = rounds.arithmetic.delta_from == "dprobs"
    seen = np.abs(product.dprobs) if from_probs else product.centred_abs + product.dlse
    weighted = (block.probs * block.growth) ** 2 * block.variance
    if forward.key_ratio is not None:
        weighted = weighted * forward.key_ratio
    variance = (weighted * seen**2).sum(axis=-1).astype(np.float64)
    if block.shared_variance is not None:
        # Common to the keys as a linear function: Cauchy-Schwarz over the row.
        shared = (block.probs * block.shared_variance * block.growth**2).sum(axis=-1)
        variance = variance + shared * (block.probs * product.centred_abs**2).sum(axis=-1)
    if forward.rounded_probs is not None:
        # Where the row sum holds the same errors, they see Z dP - delta.
        summed = rounds.arithmetic.sum_rounded_probs
        sees = product.centred_abs + product.dlse if summed else product.dprobs
        variance = variance + (forward.rounded_probs * sees**2).sum(axis=-1)
    products_abs = delta_abs
    if from_probs:
        products_abs = (block.probs * np.abs(product.dprobs)).sum(axis=-1) * unit
        count = float(block.probs.shape[-1])
        dot = rounds.dprobs_steps / 3.0 * ((block.probs * product.magnitude) ** 2).sum(axis=-1)
        variance = variance + KAPPA_SQ * dot
    else:
        count = float(out.shape[-1])
        variance = variance + (dout**2 * forward.out_variance).sum(axis=-1) / (U * unit) ** 2
    variance = variance + KAPPA_SQ * (count / 3.0 + 1.0) * (products_abs / unit) ** 2
    hard = (np.abs(dout) * forward.out_hard).sum(axis=-1) / (U * unit)
    worst = (np.abs(dout) * forward.out_worst).sum(axis=-1)
    if rounds.arithmetic.delta_from == "out":
        variance = variance + (dout**2 * _stored_rounding(out, rounds)).sum(axis=-1) / (U * unit) ** 2
        worst = worst + (np.abs(dout) * half_ulp(rounds.out, _finite(np.abs(out) + forward.out_worst))).sum(axis=-1)
    worst = worst / unit + (count + 1.0) * 1.01 * U * products_abs / unit
    if from_probs:
        dot_worst = (block.probs * product.magnitude).sum(axis=-1) * rounds.growth(rounds.dprobs_steps)
        exponent = (block.probs * np.expm1(np.minimum(block.worst, 80.0)) * np.abs(product.dprobs)).sum(axis=-1)
        worst = worst + dot_worst + exponent + forward.lse_worst * products_abs / unit
        hard = hard + (block.probs * block.hard * np.abs(product.dprobs)).sum(axis=-1)
    return variance, hard, worst


def _finite(values: Float64) -> Float64:
    return np.where(np.isfinite(values), values, 0.0)


def _stored_rounding(out: Float64, rounds: Roundings) -> Float64:
    """Mean square rounding of the stored out: uniform, but never below the error that the reference itself predicts.

    On a coarse grid (V near a large mean in bf16) the rounding of out is not uniform, and dP - delta amplifies it.
    """
    with np.errstate(over="ignore"):
        predicted = out.astype(rounds.out.numpy_dtype).astype(np.float64) - out
    limit = half_ulp(rounds.out, out)
    mean_square: Float64 = np.maximum(limit**2 / 3.0, np.where(np.isfinite(predicted), predicted, limit) ** 2)
    return mean_square


def gradient_errors(
    ops: Operands,
    rounds: Roundings,
    block: ScoreBlock,
    maxima: RowMaxima,
    rows: RowErrors,
    product: Products,
    confidence: float,
) -> GradientErrors:
    """Errors of dS of a block; the row's errors enter only through the inflation of the exponent.

    Notes
    -----
    P is recomputed as exp(S - lse^), so its exponent error is theta + (lse - lse^), and

        variance = P^2 f^2 [sigma^2 G^2 + kappa^2 u^2 (n/3 ((|dO||V|^T + |dP|)/2)^2 + 3 G^2)] + rounding of dP and dS
        worst    = P [x|G| + (1+x)(gamma_n |dO||V|^T + 3u|G|)] + roundings,  x = expm1(worst exponent error)
    """
    probs = block.probs
    log_sum = (2.0 * maxima.log_sum**2 * 3.0 * KAPPA_SQ)[..., None]
    exponent_variance = block.variance + (rows.lse_variance[..., None] + log_sum).astype(np.float32)
    if block.shared_variance is not None:
        exponent_variance = exponent_variance + block.shared_variance
    own_exp = np.float32(2.0 * rounds.arithmetic.exp_ulp)
    exponent_hard = block.hard + (rows.lse_hard[..., None] + own_exp).astype(np.float32)
    reach = np.float32(confidence * U) * np.sqrt(exponent_variance) + np.float32(U) * exponent_hard
    grown = inflation(reach)
    weighted = probs * grown
    slope: Real | float = 1.0 if block.slope is None else block.slope
    centred_sq = product.centred_abs**2
    dscores = probs * product.centred_abs
    sloped = dscores if block.slope is None else dscores * block.slope
    half = (product.magnitude + np.abs(product.dprobs)) * np.float32(0.5)
    variance_dprobs: Real = half * half * np.float32(rounds.dprobs_steps / 3.0)
    variance_dprobs += (centred_sq + product.dlse * product.dlse) * np.float32(3.0)
    if rounds.u_dprobs:
        form = float_format(rounds.arithmetic.dprobs_dtype)
        raw = rounding_bound(np.abs(product.dprobs), form, form.half_subnormal / product.unit * ops.dropout_factor)
        variance_dprobs += raw * raw
    variance_dprobs *= np.float32(KAPPA_SQ)
    exponent_part = block.variance if block.shared_variance is None else block.variance + block.shared_variance
    unsloped = weighted * weighted * (exponent_part * centred_sq + variance_dprobs)
    hard: Real = dscores * (block.hard + own_exp)
    if rounds.truncates:
        hard = hard + probs * half * np.float32(rounds.dprobs_steps * rounds.step / U)
    if block.dropout is not None:
        hard = hard + probs * np.abs(product.dprobs) * np.float32(ops.dropout_scale_error / U)
    hard = hard * grown
    if rounds.u_probs_normalised and not rounds.arithmetic.lse_stored:
        # The stored, rounded softmax itself multiplies G.
        form = float_format(rounds.arithmetic.probs_normalised_dtype)
        stored = rounding_bound(probs, form, form.half_subnormal)
        unsloped = unsloped + rounding_variance(probs, stored, form) * centred_sq
    worst_exponent, worst = _worst(rounds, block, maxima, rows, product)
    independent = unsloped
    if block.slope is not None and block.tanh is not None:
        independent, hard, worst = _softcap(ops, rounds, block, independent, hard, worst, dscores, exponent_part)
    uncheckable_weight = _either(block.uncheckable, (reach > DETERMINED) & (probs > 0))
    uncheckable = _either(uncheckable_weight, rows.delta_overflows[..., None] & (probs > 0))
    if rounds.u_dscores:
        form = float_format(rounds.arithmetic.dscores_dtype)
        rounded = rounding_bound(sloped, form, form.half_subnormal / product.unit)
        independent = independent + rounding_variance(sloped, rounded, form)
        # Where dS vanishes its rounding is relative to its error: E[(u dS^)^2] = u^2 (dS^2 + variance).
        common = _rows(rows.delta_variance + rows.delta_hard**2) * (weighted * slope) ** 2
        independent = independent + np.float32(KAPPA_SQ * rounds.u_dscores**2) * (independent + hard * hard + common)
        worst = worst * np.float32(1 + 2 * rounds.u_dscores) + np.float32(U) * rounded
        uncheckable = _either(uncheckable, (sloped + worst) * product.unit >= form.max_finite)
    return GradientErrors(
        dscores=dscores,
        dscores_sloped=sloped,
        slope=slope,
        inflation=grown,
        exponent_variance=exponent_variance,
        exponent_hard=exponent_hard,
        independent=independent,
        unsloped=unsloped,
        hard=hard,
        worst_exponent=worst_exponent,
        worst=worst,
        uncheckable_weight=uncheckable_weight,
        uncheckable=uncheckable,
    )


def _rows(values: Float64) -> Real:
    return values[..., None].astype(np.float32)


def _either(first: Real | None, second: Real) -> Real | None:
    if not second.any():
        return first
    return second if first is None else first | second


def _worst(
    rounds: Roundings, block: ScoreBlock, maxima: RowMaxima, rows: RowErrors, product: Products
) -> tuple[Real, Real]:
    common = (rows.lse_worst + 3.0 * U * np.abs(maxima.log_sum))[..., None].astype(np.float32)
    exponent = block.worst + common + np.float32(3.0 * U) * block.gap
    exponent = exponent + np.float32(2.0 * U * rounds.arithmetic.exp_ulp)
    grown = np.where(exponent <= DETERMINED, np.expm1(np.minimum(exponent, np.float32(DETERMINED))), np.inf)
    grown = np.where(block.probs > 0, grown, np.float32(0)).astype(np.float32)
    dot: Real = product.magnitude * np.float32(rounds.growth(rounds.dprobs_steps) + rounds.u_dprobs)
    if rounds.u_dprobs:
        dot = dot + np.float32(float_format(rounds.arithmetic.dprobs_dtype).half_subnormal / product.unit)
    if block.dropout is not None:
        dot = dot + np.float32(4 * U) * np.abs(product.dprobs)
    inner = dot + np.float32(3.0 * U) * (product.centred_abs + product.dlse)
    worst = block.probs * (grown * product.centred_abs + (1 + grown) * inner)
    if rounds.u_probs_normalised and not rounds.arithmetic.lse_stored:
        form = float_format(rounds.arithmetic.probs_normalised_dtype)
        stored = np.float32(U) * rounding_bound(block.probs, form, form.half_subnormal)
        worst = worst + stored * product.centred_abs
    return grown, worst


def _softcap(
    ops: Operands,
    rounds: Roundings,
    block: ScoreBlock,
    variance: Real,
    hard: Real,
    worst: Real,
    dscores: Real,
    exponent: Real,
) -> tuple[Real, Real, Real]:
    """Multiply by the slope 1 - tanh^2 and add its own error.

    d slope = -2 tanh slope/c dt, and tanh itself carries exp_ulp: the rounding of 1 - tanh^2 does not shrink with the
    slope. `exponent` already contains the slope squared, so 2 tanh/c times its root is the first part.
    """
    assert block.slope is not None
    assert block.tanh is not None
    slope = block.slope
    turn = np.float32(2.0 / ops.sequence.softcap) * block.tanh
    own = np.float32(4.0 * rounds.arithmetic.exp_ulp + 3.0) * block.tanh**2 + np.float32(2.0) * slope
    variance = variance * slope * slope + (dscores * turn) ** 2 * exponent
    hard = hard * slope + dscores * own
    worst = worst * slope + dscores * (turn * np.float32(1.01) * block.worst + np.float32(1.01 * U) * own)
    return variance, hard, worst
