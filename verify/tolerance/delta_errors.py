"""dP and delta of a block, and the errors of lse and delta that the weights of a row have in common."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verify.dense import Float64
from verify.dtypes import FloatFormat, float_format
from verify.tolerance.correlation import bin_factor, over_channels
from verify.tolerance.equal_addends import repeated_in_delta, repeated_over_channels, repeated_weights
from verify.tolerance.forward_terms import ForwardBlock
from verify.tolerance.operands import Operands, Scaled
from verify.tolerance.probs_rounding import rounding_bound, rounding_variance
from verify.tolerance.repetition import INDEPENDENT
from verify.tolerance.roundings import KAPPA_SQ, Real, Roundings, U
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
    delta_predicted: Float64
    """Error of delta that storing the reference's own out, P and dP gives, signed, units of unit."""
    lse_prescaled: Float64
    """The part of lse_hard that pre-scaled operands give."""
    delta_prescaled: Float64
    """The same of delta_hard."""
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
    confidence: float,
) -> RowErrors:
    """Errors of lse and delta for rows whose block spans all keys.

    What a pre-scaled q or k gives is common to rows and keys as a linear function, so all of it counts as correlated.
    """
    assert ops.dout is not None
    dout = ops.dout.values[:, block.rows].astype(np.float64) * ops.dout.unit
    out = ops.out[:, block.rows]
    lse = np.abs(maxima.lse)
    delta = (dout * out).sum(axis=-1)
    stored = rounds.lse.half_ulp(maxima.lse) if rounds.arithmetic.lse_stored else 0.0
    lse_variance = np.maximum(forward.lse_variance - forward.lse_shared, 0.0) + KAPPA_SQ * 3.0 * lse**2
    lse_prescaled = confidence * np.sqrt(forward.lse_shared)
    lse_hard = (forward.lse_hard + stored) / U + lse_prescaled
    prescaled = confidence * np.sqrt(_shared_variance(block, product))
    delta_abs = (np.abs(dout) * np.abs(out)).sum(axis=-1)
    variance, hard, worst = _delta_errors(ops, rounds, block, forward, product, dout, delta, delta_abs, prescaled)
    if rounds.arithmetic.delta_from == "dprobs":
        variance = variance + lse_variance * (delta / product.unit) ** 2
        hard = hard + lse_hard * np.abs(delta) / product.unit
        prescaled = prescaled + lse_prescaled * np.abs(delta) / product.unit
    if ops.dlse is not None:
        variance = variance + KAPPA_SQ * ((np.abs(delta) + np.abs(ops.dlse[:, block.rows])) / product.unit) ** 2
    return RowErrors(
        unit=product.unit,
        delta=delta / product.unit,
        lse_variance=np.where(maxima.alive, lse_variance, 0.0),
        lse_hard=np.where(maxima.alive, lse_hard, 0.0),
        lse_prescaled=np.where(maxima.alive, lse_prescaled, 0.0),
        delta_prescaled=np.broadcast_to(prescaled, delta.shape),
        lse_worst=np.where(maxima.alive, forward.lse_worst + stored + 3.0 * U * lse, 0.0),
        delta_variance=variance,
        delta_predicted=_predicted(ops, rounds, block, product, dout),
        delta_hard=hard,
        delta_worst=worst,
        delta_overflows=_delta_overflows(ops, rounds, block, forward, product, delta, worst),
    )


def _delta_errors(
    ops: Operands,
    rounds: Roundings,
    block: ScoreBlock,
    forward: ForwardBlock,
    product: Products,
    dout: Float64,
    delta: Float64,
    delta_abs: Float64,
    prescaled: Float64,
) -> tuple[Float64, Float64, Float64]:
    """Variance (U^2 unit^2), hard bound (U unit) and worst case (unit) of delta."""
    unit, out = product.unit, ops.out[:, block.rows]
    from_probs = rounds.arithmetic.delta_from == "dprobs"
    # delta is no sum of dlse, which G contains.
    centred = product.centred_abs + product.dlse
    seen = np.abs(product.dprobs) if from_probs else centred
    weighted = (block.probs * block.growth) ** 2 * block.variance
    if forward.key_ratio is not None:
        weighted = weighted * forward.key_ratio
    variance = (weighted * seen**2).sum(axis=-1).astype(np.float64)
    if forward.rounded_probs is not None:
        # Where the row sum holds the same errors, they see Z dP - delta.
        summed = rounds.arithmetic.sum_rounded_probs
        sees = centred if summed else product.dprobs
        variance = variance + (forward.rounded_probs * sees**2).sum(axis=-1)
    hard = (np.abs(dout) * forward.out_hard).sum(axis=-1) / (U * unit) + prescaled
    worst = (np.abs(dout) * forward.out_worst).sum(axis=-1)
    if not from_probs:
        size, count, repeated = delta_abs / unit, float(out.shape[-1]), repeated_in_delta(ops, block.rows, out)
        variance = variance + over_channels(dout, out, forward.out_variance, rounds.out) / (U * unit) ** 2
    else:
        weights = block.probs * np.abs(product.dprobs)
        size, count = weights.sum(axis=-1), float(weights.shape[-1])
        repeated = repeated_weights(weights) if count > INDEPENDENT else 1.0
    if rounds.arithmetic.delta_from == "out":
        variance = variance + over_channels(dout, out, _stored_rounding(out, rounds), rounds.out) / (U * unit) ** 2
        worst = worst + (np.abs(dout) * rounds.out.half_ulp(_finite(np.abs(out) + forward.out_worst))).sum(axis=-1)
    variance = variance + KAPPA_SQ * (count / 3.0 * repeated + 1.0) * size**2
    worst = worst / unit + (count + 1.0) * 1.01 * U * size
    if from_probs:
        hard = hard + (block.hard * weights).sum(axis=-1)
        variance, worst = _from_products(ops, rounds, block, product, variance, worst + forward.lse_worst * size)
        if rounds.u_dscores_products:
            variance, worst = _from_stored_products(rounds, block, product, np.abs(delta) / unit, variance, hard, worst)
    return variance, hard, worst


def _shared_variance(block: ScoreBlock, product: Products) -> Float64:
    """Variance of delta from pre-scaled operands, a linear function that keys share: Cauchy-Schwarz over the row."""
    if block.shared_variance is None:
        return np.zeros((1, 1))
    centred = product.centred_abs + product.dlse
    of_row = (block.probs * block.shared_variance * block.growth**2).sum(axis=-1)
    variance: Float64 = of_row * (block.probs * centred**2).sum(axis=-1)
    return variance


def _from_products(
    ops: Operands, rounds: Roundings, block: ScoreBlock, product: Products, variance: Float64, worst: Float64
) -> tuple[Float64, Float64]:
    """Variance and worst case of delta = rowsum(P dP) with the errors of dP."""
    dots = (block.probs * product.magnitude) ** 2
    channels = repeated_over_channels(ops, block.rows, block.keys, rounds.dprobs_steps, scores=False)
    dot = rounds.dprobs_steps / 3.0 * (dots if channels is None else dots * channels).sum(axis=-1)
    variance = variance + KAPPA_SQ * dot
    dot_worst = (block.probs * product.magnitude).sum(axis=-1) * rounds.dprobs_growth
    exponent = (block.probs * np.expm1(np.minimum(block.worst, 80.0)) * np.abs(product.dprobs)).sum(axis=-1)
    worst = worst + dot_worst + exponent
    if rounds.u_dprobs:
        values, bound = stored_dprobs(ops, rounds, product)
        rounded = block.probs * bound
        alike = bin_factor(values, block.probs * values, float_format(rounds.arithmetic.dprobs_dtype))
        variance = variance + KAPPA_SQ * (rounded * rounded * alike).sum(axis=-1)
        worst = worst + U * rounded.sum(axis=-1)
    return variance, worst


def _from_stored_products(
    rounds: Roundings,
    block: ScoreBlock,
    product: Products,
    size: Float64,
    variance: Float64,
    hard: Float64,
    worst: Float64,
) -> tuple[Float64, Float64]:
    """The same where P dP and then delta, of that size, are stored."""
    form = float_format(rounds.arithmetic.dscores_products_dtype)
    one = stored_products(rounds, block.probs * block.growth, product)
    variance = variance + (one.variance * bin_factor(one.values, one.values, form)).sum(axis=-1)
    # What is rounded next is the computed sum of the rounded products.
    worst = worst + U * one.bound.sum(axis=-1)
    floor = form.half_subnormal / product.unit
    computed = size + U * np.sqrt(variance + hard**2)
    variance = variance + rounding_variance(computed, rounding_bound(computed, form, floor), form)
    return variance, worst + U * rounding_bound(size + worst, form, floor)


def _delta_overflows(
    ops: Operands,
    rounds: Roundings,
    block: ScoreBlock,
    forward: ForwardBlock,
    product: Products,
    delta: Float64,
    worst: Float64,
) -> Real:
    """Whether delta of a row may be infinite or NaN; bool (heads, rows)."""
    if rounds.arithmetic.delta_from == "out":
        return forward.out_overflows
    unbounded: Real = np.isinf(worst)
    hit = products_overflow(ops, rounds, block, product)
    if hit is not None:
        unbounded = unbounded | hit.any(axis=-1)
    if rounds.u_dscores_products:
        subtracted = delta if ops.dlse is None else delta - ops.dlse[:, block.rows]
        form = float_format(rounds.arithmetic.dscores_products_dtype)
        unbounded = unbounded | (np.abs(subtracted) + worst * product.unit >= form.max_finite)
    return unbounded


def products_overflow(ops: Operands, rounds: Roundings, block: ScoreBlock, product: Products) -> Real | None:
    """Where the stored dP, dropped ones apart, or P dP may overflow its format; bool (heads, rows, keys)."""
    hit: Real | None = None
    computed = np.abs(product.dprobs) + np.float32(rounds.dprobs_growth) * product.magnitude
    if rounds.u_dprobs:
        form = float_format(rounds.arithmetic.dprobs_dtype)
        hit = computed >= np.float32(form.max_finite / product.unit * ops.dropout_factor)
    if rounds.u_dscores_products:
        form = float_format(rounds.arithmetic.dscores_products_dtype)
        stored = block.probs * block.growth * computed >= np.float32(form.max_finite / product.unit)
        hit = stored if hit is None else hit | stored
    return hit


def _predicted(ops: Operands, rounds: Roundings, block: ScoreBlock, product: Products, dout: Float64) -> Float64:
    """What the declared roundings of out, P, dP, P dP and delta change in delta where they round what is known.

    (heads, rows), in units of the products. It is signed: rows and channels whose numbers lie alike beside those of the
    format err to one side together.
    """
    arithmetic, out = rounds.arithmetic, ops.out[:, block.rows]
    change = np.zeros(out.shape[:2])
    probs, dprobs = block.probs, product.dprobs
    if arithmetic.delta_from == "out":
        change = (dout * storing(out, rounds.out)).sum(axis=-1) / product.unit
    if rounds.u_probs_normalised:
        rounded = storing(block.probs, float_format(arithmetic.probs_normalised_dtype))
        change = change + (rounded * product.dprobs).sum(axis=-1)
        probs = probs + rounded
    if rounds.u_dprobs and arithmetic.delta_from == "dprobs":
        factor = np.float32(product.unit / ops.dropout_factor)
        rounded = storing(product.dprobs * factor, float_format(arithmetic.dprobs_dtype)) / factor
        change = change + (block.probs * rounded).sum(axis=-1)
        dprobs = dprobs + rounded
    if rounds.u_dscores_products:
        form, unit = float_format(arithmetic.dscores_products_dtype), product.unit
        change = change + (storing(probs * dprobs * np.float32(unit), form) / np.float32(unit)).sum(axis=-1)
        change = change + storing((dout * out).sum(axis=-1) + change * unit, form) / unit
    return change


def stored_dprobs(ops: Operands, rounds: Roundings, product: Products) -> tuple[Real, Real]:
    """|dP| before dropout as it is stored, and the bound on its rounding, in units of U and of the products."""
    form = float_format(rounds.arithmetic.dprobs_dtype)
    computed = np.abs(product.dprobs) + np.float32(rounds.dprobs_growth) * product.magnitude
    values = np.abs(product.dprobs) * np.float32(product.unit / ops.dropout_factor)
    return values, rounding_bound(computed, form, form.half_subnormal / product.unit * ops.dropout_factor)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredProducts:
    """P |dP| as it is stored; float32 (heads, rows, keys)."""

    values: Real
    """What is rounded, in the units of the format."""
    bound: Real
    """Units of U and of the products."""
    variance: Real
    """Units of U^2 and of the products squared."""


def stored_products(rounds: Roundings, probs: Real, product: Products) -> StoredProducts:
    """The stored P dP of weights whose own error is in `probs`, and the rounding of it."""
    form = float_format(rounds.arithmetic.dscores_products_dtype)
    sizes = probs * (np.abs(product.dprobs) + np.float32(rounds.dprobs_growth) * product.magnitude)
    bound = rounding_bound(sizes, form, form.half_subnormal / product.unit)
    values = probs * np.abs(product.dprobs) * np.float32(product.unit)
    return StoredProducts(values=values, bound=bound, variance=rounding_variance(sizes, bound, form))


def _finite(values: Float64) -> Float64:
    return np.where(np.isfinite(values), values, 0.0)


def _stored_rounding(out: Float64, rounds: Roundings) -> Float64:
    """Mean square rounding of the stored out: uniform, but never below the error that the reference itself predicts.

    On a coarse grid (V near a large mean in bf16) the rounding of out is not uniform, and dP - delta amplifies it.
    """
    mean_square: Float64 = np.maximum(rounds.out.half_ulp(out) ** 2 / 3.0, storing(out, rounds.out) ** 2)
    return mean_square


def storing(values: Real, form: FloatFormat) -> Real:
    """Signed change when values are stored in the format; half an ulp where they overflow it."""
    with np.errstate(over="ignore"):
        change = values.astype(form.numpy_dtype).astype(values.dtype) - values
    good = np.isfinite(change)
    return change if good.all() else np.where(good, change, form.half_ulp(values.astype(np.float64)))
