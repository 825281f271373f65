"""Error of the exponent of every weight: what the kernel's exp(S - m) may be off by, relative to the exact weight.

Let the kernel's weight be P~ e^theta. `variance` is that of the independent zero-mean part of theta, `hard` a bound on
its possibly fully correlated part, `worst` a bound on all of it. No weight is applied here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verify.dense import Bool, Float64
from verify.dtypes import float_format
from verify.tolerance.equal_addends import repeated_over_channels
from verify.tolerance.operands import Operands
from verify.tolerance.roundings import DETERMINED, LINEAR, TINY_WEIGHT, Real, Roundings, U, inflation
from verify.tolerance.score_errors import HUGE, ScoreErrors, query_underflow, query_variance, small, soft_capped
from verify.tolerance.swallowed import swallowed_channels


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScoreBlock:
    """Rows against keys of some heads. Arrays float32 (heads, rows, keys) unless said otherwise."""

    rows: slice
    keys: slice
    keep: Bool | None
    """bool (1 | heads, rows, keys): what each row may attend to; None when nothing is hidden."""
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
    key_peak: Float64
    """max_j S_ij over visible keys; 0 where there is none."""
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
                   + softcap: u a|t| + (u + u_S + 2u tanh_ulp)|z|     + bias: u|b| + (u + u_S)|S|
        variance = kappa^2 u^2 [n/3 (aH)^2 + n_scale (at)^2 + 3 gap^2 + ...the same roundings squared]
        hard     = 2u exp_ulp (1 + sqrt(T-1)) + c_m u (|m| + gap) + softcap: 2u tanh_ulp |z|
                   + n step aH where the sum truncates, else a s sum |q k| over channels below its grid (`swallowed`)

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
    first_error = (rounds.dot_growth + rounds.u_query) * magnitude + scale_steps * np.abs(dots)
    scores, slope, tanh = soft_capped(dots, first_error, sequence.softcap)
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
    errors = ScoreErrors(
        rounds=rounds,
        half=small(0.5 * (magnitude + np.abs(dots))),
        magnitude=small(magnitude),
        dots=small(np.abs(dots)),
        slope=slope,
        capped=None if tanh is None else small(np.abs(capped)),
        bias=None if bias is None else small(np.abs(bias)),
        scores=None if bias is None else small(np.abs(scores)),
        gap=gap,
        peak=np.abs(maxima.peak)[..., None].astype(np.float32),
        repeated=repeated_over_channels(ops, rows, keys, rounds.dot_steps, scores=True),
        swallowed=None if rounds.truncates else swallowed_channels(ops, rows, keys),
    )
    underflow = query_underflow(ops, rounds)
    variance, hard, worst = errors.variance(), errors.hard(underflow), errors.worst(underflow)
    shared = query_variance(ops, rounds, rows, keys, slope)
    growth, undetermined = _growth(variance if shared is None else variance + shared, hard, confidence)
    probs = np.where(hidden, np.float32(0), _weights(scores - maxima.lse[..., None], worst))
    block = ScoreBlock(
        rows=rows,
        keys=keys,
        keep=keep,
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


def _dot_magnitude(ops: Operands, rows: slice, keys: slice) -> Real:
    """A = s |Q||K|^T: float32, or float64 where it might overflow that."""
    unit = ops.q_scaled.unit * ops.k_scaled.unit * ops.sequence.softmax_scale
    plain = ops.scores(ops.q_scaled.magnitude[:, rows], ops.k_scaled.magnitude[:, keys])
    if unit * ops.q.shape[-1] < HUGE:
        plain *= np.float32(unit)
        return plain
    return plain.astype(np.float64) * unit


def _row_maxima(ops: Operands, scores: Float64, keep: Bool | None, rows: slice) -> RowMaxima:
    shape = scores.shape
    shown = scores if keep is None else np.where(keep, scores, -np.inf)
    peak = shown.max(axis=-1, initial=-np.inf)
    if keep is None:
        visible = np.full(shape[:2], float(shape[2]))
    else:
        visible = np.broadcast_to(keep, shape).sum(axis=-1).astype(np.float64)
    key_peak = np.where(np.isfinite(peak), peak, 0.0)
    if ops.sink is not None:
        peak = np.maximum(peak, ops.sink[:, None])
    lse = ops.lse[:, rows]
    alive = np.isfinite(peak) & np.isfinite(lse)
    peak = np.where(alive, peak, 0.0)
    lse = np.where(alive, lse, 0.0)
    visible = np.where(alive, visible, 0.0)
    return RowMaxima(peak=peak, key_peak=key_peak, log_sum=lse - peak, lse=lse, alive=alive, visible=visible)


def _dropout(ops: Operands, rows: slice, keys: slice) -> Real | None:
    kept = ops.sequence.dropout_block(ops.heads, rows, keys)
    return None if kept is None else kept.astype(np.float32) * np.float32(1.0 / (1.0 - ops.sequence.dropout_p))


def _overflows(ops: Operands, rounds: Roundings, magnitude: Real, hidden: Real) -> Real | None:
    """Where partial sums of a score may leave fp32, or the score its own format."""
    limit = float(np.finfo(np.float32).max) * min(1.0, ops.sequence.softmax_scale)
    if rounds.u_scores:
        limit = min(limit, float_format(rounds.arithmetic.scores_dtype).max_finite)
    if not magnitude.size or float(magnitude.max()) < limit:
        return None
    return (magnitude >= limit) & ~hidden
