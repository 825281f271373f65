"""Terms of out for a block of query rows: exponent, rounding of P, accumulation, and their worst case."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verify.dense import Float64
from verify.dtypes import FP32, float_format
from verify.tolerance.equal_addends import repeated_over_keys
from verify.tolerance.operands import Operands
from verify.tolerance.probs_rounding import ProbsRounding
from verify.tolerance.roundings import FLUSH, KAPPA_SQ, SAFETY, TINY_WEIGHT, Real, Roundings, U
from verify.tolerance.row_exponents import ExponentErrors, WorstExponent
from verify.tolerance.row_sums import RowSums
from verify.tolerance.scores import RowMaxima, ScoreBlock
from verify.tolerance.swallowed import coherent, swallowed_over_keys
from verify.tolerance.terms import Terms, somewhere_hidden, total


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OutInputs:
    """What the terms of out are computed from."""

    block: ScoreBlock
    maxima: RowMaxima
    rows: RowSums
    rounding: ProbsRounding | None
    errors: ExponentErrors
    worst: WorstExponent

    @property
    def count(self) -> Float64:
        """Visible keys, (heads, rows, 1)."""
        return self.maxima.visible[..., None]


def out_terms(ops: Operands, rounds: Roundings, inputs: OutInputs, confidence: float) -> Terms:
    """Terms of out (heads, rows, head_dim_v); everything before the last line is in units of V's scale."""
    unit, block, count = ops.v.unit, inputs.block, inputs.count
    hard, variance = _likely(ops, rounds, inputs)
    rounded = _rounded_in_full(ops, rounds, inputs)
    limit = _worst_case(ops, rounds, inputs, rounded)
    # One-winner rows: the rounding of P counts at most in full, not confidence times its deviation.
    apart = total(value for name, value in variance.items() if name != "probs rounding")
    certain = total(hard.values()) + rounded * inputs.errors.inflation + confidence * np.sqrt(apart)
    if block.undetermined is not None:
        certain = _undetermined(block, certain)
        hard["exponent"] = _undetermined(block, hard["exponent"])
    hard["underflow"] = count * (TINY_WEIGHT + FLUSH * (1.0 + 1.0 / unit))
    limit = np.minimum(limit, certain) * SAFETY + hard["underflow"]
    limit = _uncheckable_rows(limit, rounds, ops, inputs)
    return Terms(hard=hard, variance=variance, worst=limit, unit=unit, seen=somewhere_hidden(count > 0))


def _likely(ops: Operands, rounds: Roundings, inputs: OutInputs) -> tuple[dict[str, Real], dict[str, Real]]:
    """Hard terms and variances."""
    rows, errors, count, tiles = inputs.rows, inputs.errors, inputs.count, rounds.tiles_k
    half = _half(rows)
    grow = errors.inflation
    steps = (count + tiles + 2.0) / 3.0
    repeats = repeated_over_keys(ops, rows.weights, ops.v.values)
    apart = half**2 if repeats is None else repeats * half**2
    together = rows.repeated[..., None] * rows.out_abs**2
    accumulate = KAPPA_SQ * U**2 * (steps * (apart + together) + 4.0 * rows.out_abs**2)
    hard: dict[str, Real] = {"exponent": U * errors.hard * grow}
    variance: dict[str, Real] = {
        "exponent": (U * errors.deviation * grow) ** 2,
        "accumulation": accumulate * grow**2,
    }
    if rounds.truncates:
        hard["truncation"] = rounds.step * (rounds.steps(count) + tiles) * half
    else:
        lost = swallowed_over_keys(ops, rows.weights, ops.v.magnitude, rows.mean_abs, half)
        if lost is not None:
            hard["swallowed"] = (lost + rows.swallowed[..., None] * rows.out_abs) * grow
    if inputs.block.dropout is not None:
        hard["dropout scale"] = ops.dropout_scale_error * rows.out_abs
    if rounds.arithmetic.rounds_out_per_tile:
        # The un-normalised accumulator is rounded after the last tile too, before the division and dropout's factor.
        underflow = rounds.out.half_subnormal * ops.dropout_factor / ops.v.unit
        once = KAPPA_SQ * (rounds.out.unit_roundoff * half) ** 2 + underflow**2
        variance["rounded per tile"] = coherent(tiles) * once
    if inputs.rounding is not None and not (rounds.arithmetic.argmax_exact or rounds.arithmetic.sum_rounded_probs):
        # exp(0) = 1 + e becomes 1 where P is rounded and stays 1 + e in the row sum: e no longer cancels.
        top = np.where(inputs.block.gap > 0, np.float32(0), rows.weights)
        hard["exp of the maximum"] = 2.0 * U * rounds.arithmetic.exp_ulp * ops.onto_rows(top, ops.v.magnitude)
    if inputs.rounding is not None:
        variance["probs rounding"] = U**2 * _rounding_onto_values(ops, rounds, inputs, inputs.rounding) * grow**2
    return hard, variance


def _half(rows: RowSums) -> Real:
    """Largest modulus of a partial sum: (Z P |V| + |O|)/2."""
    half: Real = (rows.mean_abs + rows.out_abs) * np.float32(0.5)
    return half


def _rounded_in_full(ops: Operands, rounds: Roundings, inputs: OutInputs) -> Real:
    """Bound on what the rounding of P does to out, all errors of one sign."""
    if inputs.rounding is None:
        return np.zeros((1, 1, 1))
    bound = inputs.rounding.bound
    in_full: Real = U * ops.onto_rows(_dropped(bound, inputs.block.dropout), ops.v.magnitude)
    if rounds.arithmetic.sum_rounded_probs:
        in_full = in_full + U * bound.sum(axis=-1, keepdims=True) * inputs.rows.out_abs
    return in_full


def _worst_case(ops: Operands, rounds: Roundings, inputs: OutInputs, rounded: Real) -> Real:
    """Bound without independence: the exponent's part stays in the hull of V."""
    rows, worst, count, tiles = inputs.rows, inputs.worst, inputs.count, rounds.tiles_k
    growth = rounds.growth(rounds.steps(count) + tiles + 2.0)
    carried = np.where(worst.determined, (1 + worst.tau) * (growth * rows.mean_abs + rounded), np.inf)
    carried = np.minimum(carried, _largest_rounding(rounds, rows, count, growth))
    fixed = (growth + 3 * U) * rows.out_abs + carried + ops.dropout_scale_error * rows.out_abs
    if rounds.arithmetic.rounds_out_per_tile:
        underflow = rounds.out.half_subnormal * ops.dropout_factor / ops.v.unit
        fixed = fixed + tiles * (rounds.out.unit_roundoff * rows.mean_abs + underflow)
    moved = np.where(worst.determined, worst.tau * rows.spread, np.inf)
    limit: Real = np.minimum(moved, rows.hull) + fixed
    return limit


def _dropped(weights: Real, factor: Real | None) -> Real:
    return weights if factor is None else weights * factor


def _rounding_onto_values(ops: Operands, rounds: Roundings, inputs: OutInputs, rounding: ProbsRounding) -> Real:
    """Variance of sum_j b_j Z_j V_j, or of sum_j b_j (Z_j V_j - O) where the row sum contains the same errors."""
    factor, rows = inputs.block.dropout, inputs.rows
    if not rounds.arithmetic.sum_rounded_probs:
        return ops.onto_rows(_dropped(rounding.variance, None if factor is None else factor * factor), ops.v.square)
    # In fp64: a hidden key far from the others leaves nothing of the difference in fp32.
    centred = ops.v.values.astype(np.float64) - rows.centre
    off = ops.out[:, inputs.block.rows] / ops.v.unit - np.repeat(rows.centre, ops.group, axis=0)
    once = _dropped(rounding.variance, factor)
    spread = ops.onto_rows(_dropped(once, factor), centred * centred)
    cross = ops.onto_rows(once, centred)
    whole = rounding.variance.sum(axis=-1, keepdims=True, dtype=np.float64)
    variance: Real = np.maximum(spread - 2 * off * cross + off**2 * whole, np.float32(0))
    return variance


def _undetermined(block: ScoreBlock, terms: Real) -> Real:
    """inf in rows with a weight that the arithmetic does not determine: only the hull of V bounds them."""
    assert block.undetermined is not None
    rows = np.asarray(block.undetermined.any(axis=-1))[..., None]
    return np.where(rows, np.inf, terms)


def _largest_rounding(rounds: Roundings, rows: RowSums, count: Float64, growth: Real) -> Float64:
    """Rounding of P and accumulation for any weights: they sum to 1 and are at most eta off below the normals."""
    relative = rounds.u_probs + rounds.u_probs_normalised
    names = [rounds.arithmetic.probs_dtype] if rounds.u_probs else []
    names += [rounds.arithmetic.probs_normalised_dtype] if rounds.u_probs_normalised else []
    absolute = np.minimum(1.0, count * sum(float_format(name).half_subnormal for name in names))
    factor = 2.0 if rounds.arithmetic.sum_rounded_probs else 1.0
    largest = rows.farthest + rows.out_abs
    reach: Float64 = factor * (relative + absolute + growth) * largest
    return reach


def _uncheckable_rows(limit: Real, rounds: Roundings, ops: Operands, inputs: OutInputs) -> Real:
    """inf where a score, or the un-normalised accumulator in its format, may overflow."""
    block = inputs.block
    if block.uncheckable is not None:
        limit = np.where(block.uncheckable.any(axis=-1, keepdims=True), np.inf, limit)
    form = rounds.out if rounds.arithmetic.rounds_out_per_tile else FP32
    # A maximum that moves lazily leaves weights up to 2^8.
    top = form.max_finite / (1.0 if rounds.arithmetic.argmax_exact else 256.0)
    if ops.v.unit * max(ops.k.shape[1], 1) >= top:
        row_sum = np.exp(inputs.maxima.log_sum)[..., None]
        reached = ops.v.unit * inputs.rows.mean_abs.astype(np.float64) * row_sum
        limit = np.where(reached >= top, np.inf, limit)
    return limit
