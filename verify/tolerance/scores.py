"""Error of the exponent of every weight: what the kernel's exp(S - m) may be off by, relative to the exact weight.

Let the kernel's weight be P~ e^theta. `variance` is that of the independent zero-mean part of theta, `hard` a bound on
its possibly fully correlated part, `worst` a bound on all of it. No weight is applied here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verify.dense import Bool, Float64
from verify.dtypes import float_format
from verify.tolerance.operands import Operands
from verify.tolerance.roundings import DETERMINED, KAPPA_SQ, LINEAR, TINY_WEIGHT, Real, Roundings, U, inflation

HUGE = np.float32(1e15)
"""Scores beyond this are not told apart: their rounding alone exceeds any exponent that matters."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScoreBlock:
    """Rows against keys of some heads. Arrays float32 (heads, rows, keys) unless said otherwise."""

    rows: slice
    keys: slice
    probs: Real
    """P, exactly 0 where hidden."""
    dropout: Real | None
    """Z: 0 or 1/(1-p)."""
    gap: Real
    """max_j S_ij - S_ij >= 0, the maximum taken over visible keys and the sink; 0 where hidden."""
    scaled: Real | None
    """|t| times the softcap slope, t the scaled dot product, where it differs from S."""
    slope: Real | None
    """d(capped score)/d(score)."""
    tanh: Real | None
    """|tanh(t/c)| where there is a softcap."""
    variance: Real
    """In units of U^2."""
    shared_variance: Real | None
    """In units of U^2: error of a pre-scaled q, common to all keys as a linear function of them."""
    hard: Real
    """In units of U, broadcastable."""
    worst: Real
    """|theta| <= worst."""
    growth: Real
    """expm1(x)/x at the confidence's error x of the exponent; one element 1 where every x is small."""
    undetermined: Real | None
    """bool: the error exceeds what any factor can tell, so the weight may be anything from 0 to 1."""
    uncheckable: Real | None
    """bool: the score may overflow its format."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowMaxima:
    """Per row (heads, rows): fp64."""

    peak: Float64
    """max_j S_ij over visible keys and the sink; 0 where there is neither."""
    log_sum: Float64
    """lse - peak = ln l; 0 where there is neither."""
    lse: Float64
    """Reference lse; 0 where it is -inf."""
    alive: Bool
    """bool: a key or the sink is visible."""
    visible: Float64
    """Visible keys of the row."""


def score_block(
    ops: Operands, rounds: Roundings, rows: slice, keys: slice, maxima: RowMaxima | None, confidence: float
) -> tuple[ScoreBlock, RowMaxima]:
    """Scores of a block and the error of their exponentials.

    Parameters
    ----------
    rows, keys : slice
        The block. Without `maxima` it must span all keys.
    maxima : RowMaxima, optional
        Row maxima found by an earlier call that did.

    Notes
    -----
    With A = s|Q||K|^T, t = s Q K^T, H = (A + |t|)/2, a = d(capped score)/dt at its largest within the error of t:

        worst    = a [(gamma_n + u_q) A + (n_scale u + u_S)|t|] + 3u gap + c_m u (|m| + gap) + 2u exp_ulp T + (T-1)u
                   + softcap: u a|t| + (u + u_S + 2u exp_ulp)|z|     + bias: u|b| + (u + u_S)|S|
        variance = kappa^2 u^2 [n/3 (aH)^2 + n_scale (at)^2 + 3 gap^2 + ...the same roundings squared]
        hard     = 2u exp_ulp (1 + sqrt(T-1)) + c_m u (|m| + gap) + softcap: 2u exp_ulp |z|  (+ n step aH if truncating)

    Partial sums of a dot product never exceed H in modulus; n/3 is the mean square of a ramp up to it.

    References
    ----------
    Higham, "Accuracy and Stability of Numerical Algorithms", 2002, 3.1; Blanchard, Higham, Higham, "Accurately
    computing the log-sum-exp and softmax functions", 2020, section 4.
    """
    sequence, heads = ops.sequence, ops.heads
    dots = ops.scores(ops.q[:, rows], ops.k[:, keys]) * sequence.softmax_scale
    magnitude = _dot_magnitude(ops, rows, keys)
    scale_steps = rounds.arithmetic.scale_roundings * U + rounds.u_scores
    first_error = (rounds.growth(rounds.dot_steps) + rounds.u_query) * magnitude + scale_steps * np.abs(dots)
    scores, slope, tanh = _soft_capped(dots, first_error, sequence.softcap)
    bias = sequence.bias_block(heads, rows, keys)
    keep = sequence.keep_block(heads, rows, keys)
    if bias is not None:
        bias = np.where(np.isfinite(bias), bias, 0.0)
        capped, scores = scores, scores + bias
    else:
        capped = scores
    if maxima is None:
        maxima = _row_maxima(ops, scores, keep, rows)
    gap64 = maxima.peak[..., None] - scores
    hidden = ~maxima.alive[..., None] if keep is None else ~(keep & maxima.alive[..., None])
    gap = np.where(hidden, np.float32(0), np.minimum(np.maximum(gap64, 0.0), HUGE).astype(np.float32))
    errors = _Errors(
        rounds=rounds,
        half=_small(0.5 * (magnitude + np.abs(dots))),
        magnitude=_small(magnitude),
        dots=_small(np.abs(dots)),
        slope=slope,
        capped=None if tanh is None else _small(np.abs(capped)),
        bias=None if bias is None else _small(np.abs(bias)),
        scores=None if bias is None else _small(np.abs(scores)),
        gap=gap,
        peak=np.abs(maxima.peak)[..., None].astype(np.float32),
    )
    underflow = _query_underflow(ops, rounds)
    variance, hard, worst = errors.variance(), errors.hard(underflow), errors.worst(underflow)
    shared = _query_variance(ops, rounds, rows, keys, slope)
    growth, undetermined = _growth(variance if shared is None else variance + shared, hard, confidence)
    probs = np.where(hidden, np.float32(0), _weights(scores - maxima.lse[..., None], worst))
    block = ScoreBlock(
        rows=rows,
        keys=keys,
        probs=probs,
        dropout=_dropout(ops, rows, keys),
        gap=gap,
        scaled=None if slope is None and bias is None else errors.sloped(errors.dots),
        slope=None if slope is None else slope.true,
        tanh=tanh,
        variance=variance,
        shared_variance=shared,
        hard=hard,
        worst=worst,
        growth=growth,
        undetermined=None if undetermined is None else undetermined & (probs > 0),
        uncheckable=_overflows(ops, rounds, magnitude, hidden),
    )
    return block, maxima


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Slope:
    true: Real
    largest: Real
    """Largest derivative within the error of the score: d ln(slope)/dt <= 2/c."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Errors:
    """Magnitudes that the roundings of one block are relative to; float32 (heads, rows, keys)."""

    rounds: Roundings
    half: Real
    magnitude: Real
    dots: Real
    slope: _Slope | None
    capped: Real | None
    bias: Real | None
    scores: Real | None
    gap: Real
    peak: Real

    def sloped(self, array: Real) -> Real:
        return array if self.slope is None else array * self.slope.largest

    def variance(self) -> Real:
        """Variance of the independent part, units of U^2."""
        arithmetic, low = self.rounds.arithmetic, np.float32((self.rounds.u_scores / U) ** 2)
        dots = self.sloped(self.dots)
        half = self.sloped(self.half)
        total = half * half
        total *= np.float32(self.rounds.dot_steps / 3.0)
        total += dots * dots * np.float32(arithmetic.scale_roundings + low + (self.capped is not None))
        total += self.gap * self.gap * np.float32(3.0)
        if self.capped is not None:
            total += self.capped * self.capped * (np.float32(1) + low)
        if self.bias is not None and self.scores is not None:
            total += self.bias * self.bias + self.scores * self.scores * (np.float32(1) + low)
        total *= np.float32(KAPPA_SQ)
        return total

    def hard(self, underflow: float) -> Real:
        """Bound on the correlated part, units of U."""
        total: Real = np.full((1, 1, 1), self.rounds.exp_error + underflow / U, dtype=np.float32)
        if self.rounds.shift_error:
            total = total + np.float32(self.rounds.shift_error) * (self.peak + self.gap)
        if self.rounds.truncates:
            total = total + np.float32(self.rounds.dot_steps * self.rounds.step / U) * self.sloped(self.half)
        if self.capped is not None:
            total = total + np.float32(2.0 * self.rounds.arithmetic.exp_ulp) * self.capped
        return total

    def worst(self, underflow: float) -> Real:
        """Bound on all of it."""
        r, arithmetic = self.rounds, self.rounds.arithmetic
        shift, exponentials = r.shift_error, r.rescales + 1
        total = self.sloped(self.magnitude) * np.float32(r.growth(r.dot_steps) + r.u_query)
        steps = arithmetic.scale_roundings + (self.capped is not None)
        total += self.sloped(self.dots) * np.float32(steps * U + r.u_scores)
        total += self.gap * np.float32((3.0 + shift) * U)
        total += self.peak * np.float32(shift * U) + np.float32(
            2.0 * U * arithmetic.exp_ulp * exponentials + r.rescales * U + underflow
        )
        if self.capped is not None:
            total += self.capped * np.float32(U + r.u_scores + 2.0 * U * arithmetic.exp_ulp)
        if self.bias is not None and self.scores is not None:
            total += self.bias * np.float32(U) + self.scores * np.float32(U + r.u_scores)
        return total


def _weights(exponent: Float64, worst: Real) -> Real:
    """P in fp32; 0 where neither P nor what its error may make of it reaches TINY_WEIGHT."""
    probs = np.exp(np.minimum(exponent, 0.0))
    small = probs < TINY_WEIGHT
    if float(worst.max(initial=0.0)) > 0.5:
        # The backward repeats the error of the forward, in its own exponent and in lse.
        rises = small & (exponent + 3.0 * worst > np.log(TINY_WEIGHT))
        probs[rises] = TINY_WEIGHT
        small &= ~rises
    probs[small] = 0.0
    return probs.astype(np.float32)


def _growth(variance: Real, hard: Real, confidence: float) -> tuple[Real, Real | None]:
    largest = confidence * U * float(np.sqrt(variance.max(initial=0.0))) + U * float(hard.max(initial=0.0))
    if largest <= LINEAR:
        return np.ones((1, 1, 1), dtype=np.float32), None
    reach = np.float32(confidence * U) * np.sqrt(variance) + np.float32(U) * hard
    return inflation(reach), (reach > DETERMINED) if largest > DETERMINED else None


def _small(array: Float64 | Real) -> Real:
    """float32, capped at HUGE so that squares stay finite."""
    return np.minimum(array, HUGE).astype(np.float32)


def _dot_magnitude(ops: Operands, rows: slice, keys: slice) -> Real:
    """A = s |Q||K|^T: float32, or float64 where it might overflow that."""
    unit = ops.q_scaled.unit * ops.k_scaled.unit * ops.sequence.softmax_scale
    plain = ops.scores(ops.q_scaled.magnitude[:, rows], ops.k_scaled.magnitude[:, keys])
    if unit * ops.q.shape[-1] < HUGE:
        plain *= np.float32(unit)
        return plain
    return plain.astype(np.float64) * unit


def _soft_capped(dots: Float64, error: Real, cap: float) -> tuple[Float64, _Slope | None, Real | None]:
    """c tanh(t/c), its slope and |tanh|."""
    if not cap:
        return dots, None, None
    tanh = np.tanh(dots / cap)
    # 1/cosh^2, not 1 - tanh^2: the difference cancels where the cap saturates.
    slope = (1.0 / np.cosh(np.minimum(np.abs(dots) / cap, 300.0)) ** 2).astype(np.float32)
    largest = np.minimum(slope * np.exp(np.minimum(2.0 / cap * error, 80.0)), 1.0).astype(np.float32)
    return cap * tanh, _Slope(true=slope, largest=largest), np.abs(tanh).astype(np.float32)


def _row_maxima(ops: Operands, scores: Float64, keep: Bool | None, rows: slice) -> RowMaxima:
    shape = scores.shape
    shown = scores if keep is None else np.where(keep, scores, -np.inf)
    peak = shown.max(axis=-1, initial=-np.inf)
    if keep is None:
        visible = np.full(shape[:2], float(shape[2]))
    else:
        visible = np.broadcast_to(keep, shape).sum(axis=-1).astype(np.float64)
    if ops.sink is not None:
        peak = np.maximum(peak, ops.sink[:, None])
    lse = ops.lse[:, rows]
    alive = np.isfinite(peak) & np.isfinite(lse)
    peak = np.where(alive, peak, 0.0)
    lse = np.where(alive, lse, 0.0)
    return RowMaxima(peak=peak, log_sum=lse - peak, lse=lse, alive=alive, visible=np.where(alive, visible, 0.0))


def _dropout(ops: Operands, rows: slice, keys: slice) -> Real | None:
    kept = ops.sequence.dropout_block(ops.heads, rows, keys)
    return None if kept is None else kept.astype(np.float32) * np.float32(1.0 / (1.0 - ops.sequence.dropout_p))


def _query_variance(ops: Operands, rounds: Roundings, rows: slice, keys: slice, slope: _Slope | None) -> Real | None:
    """kappa^2 u^2 s^2 [(n Q^2)(K^2)^T + (Q^2)(n K^2)^T] in units of U^2, n the elements that round alike.

    None when the scale is applied to the scores; the second part only where k is pre-scaled too.
    """
    if ops.query_rounding is None:
        return None
    roundoff = rounds.storage.unit_roundoff
    unit = (ops.q_scaled.unit * ops.k_scaled.unit * ops.sequence.softmax_scale * roundoff / U) ** 2 * KAPPA_SQ
    squares = ops.scores(ops.query_rounding[:, rows], ops.k_scaled.square[:, keys])
    if ops.key_rounding is not None:
        squares = squares + ops.scores(ops.q_scaled.square[:, rows], ops.key_rounding[:, keys])
    variance = _small(squares.astype(np.float64) * unit)
    return variance if slope is None else variance * slope.largest * slope.largest


def _query_underflow(ops: Operands, rounds: Roundings) -> float:
    """Largest error of a score when the pre-scaled q (and k) underflow in the storage format."""
    if not rounds.u_query:
        return 0.0
    norms = [float(np.abs(x).sum(axis=-1).max(initial=0.0)) for x in (ops.q, ops.k)]
    return rounds.storage.half_subnormal * sum(norms) * max(1.0, ops.sequence.softmax_scale)


def _overflows(ops: Operands, rounds: Roundings, magnitude: Real, hidden: Real) -> Real | None:
    """Where partial sums of a score may leave fp32, or the score its own format."""
    limit = float(np.finfo(np.float32).max) * min(1.0, ops.sequence.softmax_scale)
    if rounds.u_scores:
        limit = min(limit, float_format(rounds.arithmetic.scores_dtype).max_finite)
    if not magnitude.size or float(magnitude.max()) < limit:
        return None
    return (magnitude >= limit) & ~hidden
