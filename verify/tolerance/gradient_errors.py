"""Error of dS of every weight, which dq, dk, dbias and dsink are sums of.

Splits it into what is independent from weight to weight and what may be fully correlated; what is common to a row comes
from `delta_errors`. Formulas: docs/tolerances.md, section Backward.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from verify.dense import Float64
from verify.dtypes import FloatFormat, float_format
from verify.tolerance.correlation import bin_factor
from verify.tolerance.delta_errors import Products, RowErrors, products_overflow, stored_dprobs, stored_products
from verify.tolerance.equal_addends import repeated_over_channels
from verify.tolerance.gradient_terms import as_rows, column_bin_factor
from verify.tolerance.operands import Operands
from verify.tolerance.probs_rounding import rounding_bound, rounding_variance
from verify.tolerance.roundings import DETERMINED, KAPPA_SQ, Real, Roundings, U, inflation, is_short
from verify.tolerance.scores import RowMaxima, ScoreBlock
from verify.tolerance.terms import total


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredRounding:
    """Rounding of a factor of dS, or of dS, to a short format: equal numbers round alike."""

    form: FloatFormat
    values: Real
    """What is rounded, float32 (heads, rows, keys)."""
    variance: Real
    """Its effect on sloped dS, units of U^2 unit^2."""

    def over_keys(self) -> Real:
        """Variance for a sum over the keys of a row, which the block must span."""
        spread: Real = self.variance * bin_factor(self.values, self.values, self.form)
        return spread

    def over_rows(self, ops: Operands) -> Real:
        """Variance for a sum over the rows that meet a key, which the block must span."""
        return self.variance * column_bin_factor(ops, self.values, self.form)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GradientErrors:
    """Errors of dS of a block; float32 (heads, rows, keys), before the factor of the softcap unless said."""

    dscores: Real
    """|dS|."""
    dscores_sloped: Real
    """|dS| times the slope of the softcap: what dq and dk see."""
    signed: Real | None
    """The same with the sign of dS, where dk is a product with the rounded q: what that rounding is multiplied with."""
    slope: Real | float
    inflation: Real
    """expm1(x)/x at the confidence's error x of the recomputed exponent."""
    exponent_variance: Real
    """Of the recomputed P's own exponent, units of U^2."""
    row_exponent_variance: Real
    """Of the part that the row shares, (heads, rows, 1)."""
    exponent_hard: Real
    """Units of U."""
    own_exponent: Real
    """Variance of sloped dS from its exponent, apart from the row's errors, units of U^2 unit^2."""
    products: Real
    """From dP, apart from delta."""
    stored: tuple[StoredRounding, ...]
    """Roundings to short formats on the way to sloped dS."""
    unsloped: Real
    """Variance of dS without slope and without its own rounding, for dbias."""
    hard: Real
    """Bound on the correlated error of sloped dS, units of U unit."""
    prescaled: Real | None
    """The part of `hard` that pre-scaled operands give; None where they are not."""
    unsloped_hard: Real
    worst_exponent: Real
    """expm1 of the worst exponent error."""
    worst: Real
    """Bound on the error of sloped dS apart from delta's, units of unit."""
    unsloped_worst: Real
    """Without slope and without the rounding of dS."""
    largest: float
    """Of |dP| + |G| in units of unit: what a weight too small to be seen is multiplied with at most."""
    uncheckable_weight: Real | None
    """bool: the recomputed P is not determined, or its score may overflow."""
    uncheckable: Real | None
    """bool: nor is dS, which may overflow its format."""

    def independent(self) -> Real:
        """Variance of single elements of sloped dS apart from the row's errors, units of U^2 unit^2."""
        return total([self.own_exponent, self.products, *(rounding.variance for rounding in self.stored)])


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
    log_sum = 2.0 * maxima.log_sum**2 * 3.0 * KAPPA_SQ
    of_row = as_rows(rows.lse_variance + log_sum)
    exponent_variance = block.variance + of_row
    own_hard: Real = block.hard + np.float32(2.0 * rounds.arithmetic.exp_ulp)
    shared: Real | None = None
    if block.shared_variance is not None:
        shared = np.float32(confidence) * np.sqrt(block.shared_variance)
        own_hard = own_hard + shared
    exponent_hard = own_hard + as_rows(rows.lse_hard)
    reach: Real = np.float32(confidence * U) * np.sqrt(exponent_variance) + np.float32(U) * exponent_hard
    grown = inflation(reach)
    weighted = probs * grown
    slope: Real | float = 1.0 if block.slope is None else block.slope
    centred_sq = product.centred_abs**2
    dscores = probs * product.centred_abs
    sloped = dscores if block.slope is None else dscores * block.slope
    half = (product.magnitude + np.abs(product.dprobs)) * np.float32(0.5)
    variance_dprobs: Real = half * half * np.float32(rounds.dprobs_steps / 3.0)
    repeated = repeated_over_channels(ops, block.rows, block.keys, rounds.dprobs_steps, scores=False)
    if repeated is not None:
        variance_dprobs *= repeated
    variance_dprobs += (centred_sq + product.dlse * product.dlse) * np.float32(3.0)
    variance_dprobs *= np.float32(KAPPA_SQ)
    own_exponent = weighted * weighted * block.variance * centred_sq
    products = weighted * weighted * variance_dprobs
    unsloped = own_exponent + products
    hard: Real = dscores * own_hard
    if rounds.truncates:
        hard = hard + probs * half * np.float32(rounds.dprobs_steps * rounds.step / U)
    if block.dropout is not None:
        hard = hard + probs * np.abs(product.dprobs) * np.float32(ops.dropout_scale_error / U)
    hard = hard * grown
    stored = _rounded_probs(rounds, probs, grown * product.centred_abs)
    if rounds.u_dprobs:
        values, bound = stored_dprobs(ops, rounds, product)
        form, spread = float_format(rounds.arithmetic.dprobs_dtype), np.float32(KAPPA_SQ) * (weighted * bound) ** 2
        stored = (*stored, StoredRounding(form=form, values=values, variance=spread))
    if rounds.u_dscores_products:
        stored = (*stored, *_stored_products(ops, rounds, block, rows, product, weighted))
    if stored:
        unsloped = unsloped + total([rounding.variance for rounding in stored])
    worst_exponent, worst = _worst(ops, rounds, block, maxima, rows, product)
    unsloped_hard, unsloped_worst = hard, worst
    prescaled = None if shared is None else dscores * shared * grown
    if block.slope is not None and block.tanh is not None:
        own_exponent, hard, worst = _softcap(ops, rounds, block, own_exponent, hard, worst, dscores, own_hard)
        products = products * block.slope * block.slope
        if prescaled is not None:
            prescaled = prescaled * block.slope
        stored = tuple(replace(one, variance=one.variance * block.slope * block.slope) for one in stored)
    uncheckable_weight = _either(block.uncheckable, (reach > DETERMINED) & (probs > 0))
    uncheckable = _either(uncheckable_weight, rows.delta_overflows[..., None] & (probs > 0))
    overflowing = products_overflow(ops, rounds, block, product)
    if overflowing is not None:
        uncheckable = _either(uncheckable, overflowing & (probs > 0))
    if rounds.u_dscores:
        form = float_format(rounds.arithmetic.dscores_dtype)
        # What is rounded is the computed dS: its error takes part, and decides alone where dS vanishes.
        # The format counts in what is rounded: dS, or dS times the scale.
        unit = product.unit * (ops.sequence.softmax_scale if rounds.arithmetic.scale_on_dscores else 1.0)
        floor = form.half_subnormal / unit
        common = as_rows(rows.delta_variance + rows.delta_hard**2) * (weighted * slope) ** 2
        errors = total([own_exponent, products, hard * hard, common, *(rounding.variance for rounding in stored)])
        size = np.hypot(sloped, np.float32(U) * np.sqrt(errors))
        variance = rounding_variance(size, rounding_bound(size, form, floor), form)
        stored = (*stored, StoredRounding(form=form, values=size * np.float32(unit), variance=variance))
        reached = sloped + worst + (1 + worst_exponent) * probs * slope * as_rows(rows.delta_worst)
        worst = worst + np.float32(U) * rounding_bound(reached, form, floor)
        uncheckable = _either(uncheckable, (sloped + worst) * unit >= form.max_finite)
    return GradientErrors(
        dscores=dscores,
        dscores_sloped=sloped,
        signed=sloped * np.sign(product.centred) if rounds.arithmetic.scaled_q_in_dk else None,
        slope=slope,
        inflation=grown,
        exponent_variance=block.variance,
        row_exponent_variance=of_row,
        exponent_hard=exponent_hard,
        own_exponent=own_exponent,
        products=products,
        stored=stored,
        unsloped=unsloped,
        hard=hard,
        prescaled=prescaled,
        unsloped_hard=unsloped_hard,
        worst_exponent=worst_exponent,
        worst=worst,
        unsloped_worst=unsloped_worst,
        largest=float((product.magnitude + product.centred_abs).max(initial=0.0)),
        uncheckable_weight=uncheckable_weight,
        uncheckable=uncheckable,
    )


def _rounded_probs(rounds: Roundings, probs: Real, gradient: Real) -> tuple[StoredRounding, ...]:
    """Roundings of the P that multiplies G of so much."""
    arithmetic = rounds.arithmetic
    names = [arithmetic.probs_dscores_dtype] if is_short(arithmetic.probs_dscores_dtype) else []
    # The stored, rounded softmax itself multiplies G.
    names += [arithmetic.probs_normalised_dtype] if rounds.u_probs_normalised and not arithmetic.lse_stored else []
    roundings = []
    for form in map(float_format, names):
        bound = rounding_bound(probs, form, form.half_subnormal)
        variance = rounding_variance(probs, bound, form) * gradient * gradient
        roundings.append(StoredRounding(form=form, values=probs, variance=variance))
    return tuple(roundings)


def _stored_products(
    ops: Operands, rounds: Roundings, block: ScoreBlock, rows: RowErrors, product: Products, weighted: Real
) -> tuple[StoredRounding, StoredRounding]:
    """Roundings of P dP and of P (delta - dlse) where dS is the difference of the stored two."""
    form = float_format(rounds.arithmetic.dscores_products_dtype)
    first = stored_products(rounds, weighted, product)
    delta = _subtracted(ops, block, rows)
    computed = delta + np.abs(rows.delta_predicted) + U * np.sqrt(rows.delta_variance + rows.delta_hard**2)
    size = weighted * as_rows(computed)
    spread = rounding_variance(size, rounding_bound(size, form, form.half_subnormal / product.unit), form)
    values = block.probs * as_rows(delta * product.unit)
    return (
        StoredRounding(form=form, values=first.values, variance=first.variance),
        StoredRounding(form=form, values=values, variance=spread),
    )


def _subtracted(ops: Operands, block: ScoreBlock, rows: RowErrors) -> Float64:
    """|delta - dlse|, (heads, rows), in units of the products."""
    dlse = 0.0 if ops.dlse is None else ops.dlse[:, block.rows] / rows.unit
    return np.asarray(np.abs(rows.delta - dlse))


def _either(first: Real | None, second: Real) -> Real | None:
    if not second.any():
        return first
    return second if first is None else first | second


def _worst(
    ops: Operands, rounds: Roundings, block: ScoreBlock, maxima: RowMaxima, rows: RowErrors, product: Products
) -> tuple[Real, Real]:
    common = (rows.lse_worst + 3.0 * U * np.abs(maxima.log_sum))[..., None].astype(np.float32)
    exponent = block.worst + common + np.float32(3.0 * U) * block.gap
    exponent = exponent + np.float32(2.0 * U * rounds.arithmetic.exp_ulp)
    grown = np.where(exponent <= DETERMINED, np.expm1(np.minimum(exponent, np.float32(DETERMINED))), np.inf)
    grown = np.where(block.probs > 0, grown, np.float32(0)).astype(np.float32)
    dot: Real = product.magnitude * np.float32(rounds.dprobs_growth + rounds.u_dprobs)
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
    if is_short(rounds.arithmetic.probs_dscores_dtype):
        form = float_format(rounds.arithmetic.probs_dscores_dtype)
        rounded = np.float32(U) * rounding_bound(block.probs * (1 + grown), form, form.half_subnormal)
        worst = worst + rounded * (product.centred_abs + inner)
    if rounds.u_dscores_products:
        form = float_format(rounds.arithmetic.dscores_products_dtype)
        floor = form.half_subnormal / product.unit
        first = block.probs * (1 + grown) * (np.abs(product.dprobs) + inner)
        second = block.probs * (1 + grown) * as_rows(_subtracted(ops, block, rows) + rows.delta_worst)
        worst = worst + np.float32(U) * (rounding_bound(first, form, floor) + rounding_bound(second, form, floor))
    return grown, worst


def _softcap(
    ops: Operands,
    rounds: Roundings,
    block: ScoreBlock,
    variance: Real,
    hard: Real,
    worst: Real,
    dscores: Real,
    own_hard: Real,
) -> tuple[Real, Real, Real]:
    """Multiply by the slope 1 - tanh^2 and add its own error.

    d slope = -2 tanh slope/c dt, and tanh itself carries tanh_ulp: the rounding of 1 - tanh^2 does not shrink with the
    slope. The exponent's variance already contains the slope squared, so 2 tanh/c times its root is the first part.
    """
    assert block.slope is not None
    assert block.tanh is not None
    slope = block.slope
    turn = np.float32(2.0 / ops.sequence.softcap) * block.tanh
    own = np.float32(4.0 * rounds.arithmetic.tanh_error_ulp + 3.0) * block.tanh**2 + np.float32(2.0) * slope
    variance = variance * slope * slope + (dscores * turn) ** 2 * block.variance
    hard = hard * slope + dscores * (own + turn * own_hard)
    worst = worst * slope + dscores * (turn * np.float32(1.01) * block.worst + np.float32(1.01 * U) * own)
    return variance, hard, worst
