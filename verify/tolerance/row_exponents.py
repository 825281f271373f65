"""What the exponent errors of a row's weights do together: to out, through V - O, and to lse."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verify.dense import Float64
from verify.tolerance.operands import Operands
from verify.tolerance.roundings import DETERMINED, KAPPA_SQ, Real, Roundings, U, inflation
from verify.tolerance.row_sums import RowSums
from verify.tolerance.scores import RowMaxima, ScoreBlock


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExponentErrors:
    """Sums over a row's weights of the exponent errors, (heads, rows, 1)."""

    correlated: Real
    """sum P sigma^2, units of U^2: all errors equal."""
    shared: Real
    """The part of it that a pre-scaled q or k gives."""
    deviation: Real
    """Standard deviation of sum P theta (Z V - O), (heads, rows, dim), units of U and of V's scale."""
    hard: Real
    """Bound on the correlated part of the same sum."""
    mean_hard: Real
    """sum P h, units of U: what enters lse."""
    scale: Real
    """Error of lse from the rounded scale constant, units of U."""
    inflation: Real
    """expm1(x)/x at the confidence's exponent error x."""


def exponent_errors(
    ops: Operands, block: ScoreBlock, rows: RowSums, rounds: Roundings, maxima: RowMaxima, confidence: float
) -> ExponentErrors:
    """Deviations and bounds of the weighted sums of theta over each row."""
    probs = block.probs
    sink = rows.sink_probs[..., None]
    sink_logit = 0.0 if ops.sink is None else np.abs(ops.sink)[:, None, None].astype(np.float32)
    sink_variance = np.float32(KAPPA_SQ) * (2.0 * sink_logit**2 + 3.0 * rows.sink_gap[..., None] ** 2)
    sink_hard = np.float32(rounds.exp_error) + np.float32(rounds.shift_error) * rows.sink_gap[..., None]
    weighted = probs * block.variance * block.growth**2
    correlated = weighted.sum(axis=-1, keepdims=True) + sink * sink_variance
    squared = weighted * probs if rows.key_ratio is None else weighted * probs * rows.key_ratio
    independent = squared.sum(axis=-1, keepdims=True) + sink * sink * sink_variance
    largest = np.maximum(_row_max(squared / np.maximum(probs, np.float32(1e-30))), sink * sink_variance)
    variance = np.minimum(independent * rows.farthest**2, largest * rows.spread**2)
    shared: Real = np.zeros((1, 1, 1), dtype=np.float32)
    if block.shared_variance is not None:
        shared = (probs * block.shared_variance * block.growth**2).sum(axis=-1, keepdims=True)
        correlated = correlated + shared
        variance = variance + shared * rows.spread**2
    errors = block.hard * block.growth
    hard_sq = (probs * errors * errors).sum(axis=-1, keepdims=True) + sink * sink_hard**2
    scale_spread, scale_mean = _scale_constant(block, rows, maxima, sink)
    reach = np.float32(confidence * U) * np.sqrt(correlated)
    return ExponentErrors(
        correlated=correlated,
        shared=shared,
        deviation=np.sqrt(variance),
        hard=rows.spread * (np.sqrt(hard_sq) + scale_spread),
        mean_hard=(probs * errors).sum(axis=-1, keepdims=True) + sink * sink_hard,
        scale=scale_mean,
        inflation=inflation(reach),
    )


def _row_max(array: Real) -> Real:
    largest: Real = array.max(axis=-1, keepdims=True, initial=0.0)
    return largest


def _scale_constant(block: ScoreBlock, rows: RowSums, maxima: RowMaxima, sink: Real) -> tuple[Real, Real]:
    """Error from rounding the constants scale and log2(e) once each: relative, equal for all keys; units of U.

    Returns its effect on the weights (a standard deviation, because a common shift cancels) and on lse (a mean).
    """
    probs, two = block.probs, np.float32(2.0)
    peak = maxima.peak[..., None].astype(np.float32)
    mean_gap = (probs * block.gap).sum(axis=-1, keepdims=True)
    mean_gap_sq = (probs * block.gap * block.gap).sum(axis=-1, keepdims=True)
    if block.scaled is None and not sink.any():
        variance = np.maximum(mean_gap_sq - mean_gap**2, 0) + np.float32(3e-6) * mean_gap_sq
        return two * np.sqrt(variance), two * np.abs(peak - mean_gap)
    # With a bias, softcap or sink the scores have parts that the scale does not multiply: no shift cancels.
    gap_size = np.sqrt(mean_gap_sq + sink * rows.sink_gap[..., None] ** 2)
    dots = peak - block.gap if block.scaled is None else block.scaled
    dots_size = np.sqrt((probs * dots * dots).sum(axis=-1, keepdims=True))
    return two * (gap_size + dots_size), two * (np.abs(peak) + gap_size + dots_size)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WorstExponent:
    """What no combination of signs exceeds."""

    tau: Real
    """(heads, rows, 1): |O^ - O| <= tau sd."""
    determined: Real
    """bool (heads, rows, 1): no exponent error of the row exceeds DETERMINED."""
    lse: Float64
    """(heads, rows): shift of lse."""


def _worst_sink(ops: Operands, rounds: Roundings, rows: RowSums, maxima: RowMaxima) -> Real:
    """Worst relative error of the sink's weight, (heads, rows, 1); 0 without sink."""
    if ops.sink is None:
        return np.zeros((*maxima.peak.shape, 1), dtype=np.float32)
    exponentials, shift = rounds.rescales + 1, rounds.shift_error
    steps = (2.0 * rounds.arithmetic.exp_ulp + 1.0) * exponentials + (3.0 + shift) * rows.sink_gap
    steps = steps + 2.0 * np.abs(ops.sink)[:, None] + shift * np.abs(maxima.peak)
    return np.expm1(np.minimum(U * steps, 50.0)).astype(np.float32)[..., None]


def worst_exponent(
    ops: Operands, rounds: Roundings, block: ScoreBlock, rows: RowSums, maxima: RowMaxima
) -> WorstExponent:
    """Bounds of the same sums for errors of any signs."""
    probs = block.probs
    seen = np.where(probs > 0, block.worst, np.float32(0))
    largest = _row_max(seen)
    worst = np.minimum(seen, np.float32(DETERMINED))
    grown = np.expm1(worst)
    shrunk = -np.expm1(-worst)
    sink = rows.sink_probs[..., None]
    sink_error = _worst_sink(ops, rounds, rows, maxima)
    second = (probs * grown * grown).sum(axis=-1, keepdims=True) + sink * sink_error**2
    up = ((probs * grown).sum(axis=-1, keepdims=True) + sink * sink_error)[..., 0].astype(np.float64)
    down = ((probs * shrunk).sum(axis=-1, keepdims=True) + sink * np.minimum(sink_error, 1))[..., 0].astype(np.float64)
    remaining = np.maximum(1.0 - down, 1e-3)
    tau = np.sqrt(second) / remaining[..., None].astype(np.float32)
    shift = np.maximum(np.log1p(up), -np.log1p(-np.minimum(down, 1.0 - 1e-12)))
    determined = largest <= DETERMINED
    # ln sum exp is 1-Lipschitz in the largest error, however large.
    largest = np.maximum(largest, sink_error)[..., 0]
    shift = np.where(determined[..., 0], np.minimum(shift, largest), largest)
    return WorstExponent(tau=tau, determined=determined, lse=shift)
