"""Bounds of out and lse for a block of query rows, and what the backward needs of them.

Formulas: docs/tolerances.md, section Forward. Arrays of one output are (heads, rows, head_dim_v) or (heads, rows).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from verify.dense import Bool, Float64
from verify.dtypes import FP32, FloatFormat, float_format
from verify.tolerance.correlation import bin_factor, group_ratio
from verify.tolerance.operands import Operands
from verify.tolerance.roundings import (
    DETERMINED,
    FLUSH,
    KAPPA_SQ,
    SAFETY,
    TINY_WEIGHT,
    Real,
    Roundings,
    U,
    half_ulp,
    inflation,
)
from verify.tolerance.scores import RowMaxima, ScoreBlock


@dataclass(slots=True, kw_only=True, eq=False)
class Terms:
    """Terms of one output on one block: hard adds, variance adds in squares, worst caps their combination."""

    hard: dict[str, Float64] = field(default_factory=dict)
    variance: dict[str, Float64] = field(default_factory=dict)
    worst: Float64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForwardBlock:
    """Forward bounds of some rows."""

    out: Terms
    lse: Terms
    rounded_probs: Real | None
    """Variance of the rounding of P (normalised, before dropout) in units of U^2, or None where P stays fp32."""
    key_ratio: Real | None
    """Weight of each key's group of equal keys over its own weight, or None where keys differ."""
    lse_variance: Float64
    """(heads, rows) in units of U^2, without the storage of lse."""
    lse_hard: Float64
    """(heads, rows), absolute, without the storage of lse."""
    out_variance: Float64
    """Variance of the accumulation of out, which delta sees beside the terms of single weights."""
    out_hard: Float64
    out_worst: Float64
    out_overflows: Bool
    """bool (heads, rows): an element of the stored out may be infinite."""
    lse_worst: Float64


def forward_block(
    ops: Operands, rounds: Roundings, block: ScoreBlock, maxima: RowMaxima, confidence: float
) -> ForwardBlock:
    """Terms of out and lse for rows whose block spans all keys.

    Notes
    -----
    With y_j = e^theta_j and z = sum P y the kernel's row is O^ = (1/z) sum P y Z V, hence, exactly and for any theta,
    O^ - O = (1/z) sum_j P_j (y_j - 1)(Z_j V_j - O), because sum_j P_j (Z_j V_j - O) = 0 (the sink is a key with V = 0).
    Cauchy-Schwarz then bounds it by tau_i sd_ic, with sd the P-weighted standard deviation of Z V.
    """
    rows = _Rows.of(ops, rounds, block, maxima)
    rounding = _probs_rounding(rounds, block, maxima, confidence)
    with np.errstate(over="ignore", invalid="ignore"):
        return _combine(ops, rounds, block, maxima, rows, rounding, confidence)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Rows:
    """Row sums that the terms share; V and O in units of V's scale, float32."""

    out: Real
    out_abs: Real
    centre: Real
    """Column mean of V (kv heads, 1, dim); 0 with dropout or a sink, where O is no mean of V."""
    centred_sq: Real
    """(V - centre)^2."""
    weights: Real
    """Z P."""
    mean_abs: Real
    """Z P |V|."""
    spread: Real
    """sd: P-weighted standard deviation of Z V about O."""
    farthest: Real
    """Largest |Z V - O| of a column."""
    hull: Real
    """Width of the interval that every weighting of Z V stays in."""
    sink_probs: Real
    """(heads, rows); 0 without sink."""
    sink_gap: Real
    key_ratio: Real | None

    @staticmethod
    def of(ops: Operands, rounds: Roundings, block: ScoreBlock, maxima: RowMaxima) -> _Rows:
        out = (ops.out[:, block.rows] / ops.v.unit).astype(np.float32)
        plain = ops.sink is None and block.dropout is None
        values = ops.v.values
        mean = values.mean(axis=1, keepdims=True) if values.shape[1] else np.zeros_like(values[:, :1])
        centre = mean if plain and values.shape[1] else np.zeros((values.shape[0], 1, values.shape[2]), np.float32)
        centred_sq = (values - centre) ** 2
        weights = block.probs if block.dropout is None else block.probs * block.dropout
        second = weights if block.dropout is None else weights * block.dropout
        mean_abs = ops.onto_rows(weights, ops.v.magnitude)
        mean_sq = ops.onto_rows(second, centred_sq)
        off_centre = out - np.repeat(centre, ops.group, axis=0)
        spread = np.sqrt(np.maximum(mean_sq - off_centre * off_centre, 0) + np.float32(3e-6) * mean_sq)
        low, high = (np.repeat(edge, ops.group, axis=0) for edge in _column_range(values, plain=plain))
        stretch = np.float32(1.0 if block.dropout is None else 1.0 / (1.0 - ops.sequence.dropout_p))
        sink_probs, sink_gap = _sink_column(ops, block, maxima)
        return _Rows(
            out=out,
            out_abs=np.abs(out),
            centre=centre,
            centred_sq=centred_sq,
            weights=weights,
            mean_abs=mean_abs,
            spread=spread,
            farthest=np.maximum(np.abs(stretch * high - out), np.abs(stretch * low - out)),
            hull=stretch * (high - low),
            sink_probs=sink_probs,
            sink_gap=sink_gap,
            key_ratio=_key_ratio(ops, block),
        )


def _column_range(values: Real, *, plain: bool) -> tuple[Real, Real]:
    """Smallest and largest value of each column (kv heads, 1, dim), 0 included where O need not lie between them."""
    between = plain and values.shape[1] > 0
    low = values.min(axis=1, keepdims=True, initial=np.inf if between else 0.0)
    high = values.max(axis=1, keepdims=True, initial=-np.inf if between else 0.0)
    return low, high


def _sink_column(ops: Operands, block: ScoreBlock, maxima: RowMaxima) -> tuple[Real, Real]:
    if ops.sink is None:
        none = np.zeros(maxima.peak.shape, dtype=np.float32)
        return none, none
    probs = np.where(maxima.alive, np.exp(np.minimum(ops.sink[:, None] - maxima.lse, 0.0)), 0.0)
    return probs.astype(np.float32), np.maximum(maxima.peak - ops.sink[:, None], 0.0).astype(np.float32)


def _key_ratio(ops: Operands, block: ScoreBlock) -> Real | None:
    if all(groups is None for groups in ops.key_groups):
        return None
    ratio = np.ones(block.probs.shape, dtype=np.float32)
    for kv_head, groups in enumerate(ops.key_groups):
        if groups is not None:
            heads = slice(kv_head * ops.group, (kv_head + 1) * ops.group)
            ratio[heads] = group_ratio(block.probs[heads], groups[block.keys])
    return ratio


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _ProbsRounding:
    """Rounding of P before P V and before dropout: float32 (heads, rows, keys), of normalised P, in units of U."""

    bound: Real
    variance: Real


def rounding_bound(values: Real, form: FloatFormat, half_subnormal: Real | float) -> Real:
    """Largest error of rounding `values` >= 0 to `form`, in units of U: relative, or absolute near 0, at most all."""
    relative = values * np.float32(form.unit_roundoff / U)
    absolute = np.minimum(values * np.float32(1.0 / U), np.float32(1.0 / U) * np.asarray(half_subnormal, np.float32))
    bound: Real = np.maximum(relative, absolute)
    return bound


def rounding_variance(values: Real, bound: Real, form: FloatFormat) -> Real:
    """kappa^2 bound^2 in the normal range, bound^2 where the error is absolute (it may be the whole value)."""
    normal = bound <= values * np.float32(form.unit_roundoff / U * 1.0001)
    return bound * bound * np.where(normal, np.float32(KAPPA_SQ), np.float32(1))


def _probs_rounding(
    rounds: Roundings, block: ScoreBlock, maxima: RowMaxima, confidence: float
) -> _ProbsRounding | None:
    """B_ij = max(u_p P, min(P, eta_p / l)); at the running maximum P~ is exactly 1 where declared."""
    bound: Real | None = None
    variance: Real | None = None
    if rounds.u_probs:
        form = float_format(rounds.arithmetic.probs_dtype)
        row_sum = np.exp(maxima.log_sum)[..., None]
        bound = rounding_bound(block.probs, form, form.half_subnormal / row_sum)
        plain_bound = bound
        if rounds.arithmetic.argmax_exact:
            sigma = np.sqrt(block.variance)
            near_tie = block.probs * (2.0 * np.float32(confidence) * sigma + block.hard)
            bound = np.where(block.gap > 0, bound, np.minimum(bound, near_tie))
        variance = rounding_variance(block.probs, plain_bound, form)
        variance *= np.where(plain_bound > 0, (bound / np.maximum(plain_bound, np.float32(1e-30))) ** 2, np.float32(0))
        variance *= bin_factor(block.probs * row_sum.astype(np.float32), block.probs, form)
    if rounds.u_probs_normalised:
        form = float_format(rounds.arithmetic.probs_normalised_dtype)
        stored = rounding_bound(block.probs, form, form.half_subnormal)
        spread = rounding_variance(block.probs, stored, form) * bin_factor(block.probs, block.probs, form)
        bound = stored if bound is None else bound + stored
        variance = spread if variance is None else variance + spread
    if bound is None or variance is None:
        return None
    return _ProbsRounding(bound=bound, variance=variance)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _RowErrors:
    """Sums over a row's weights of the exponent errors, (heads, rows, 1)."""

    correlated: Real
    """sum P sigma^2, units of U^2: all errors equal."""
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


def _row_errors(ops: Operands, block: ScoreBlock, rows: _Rows, rounds: Roundings, confidence: float) -> _RowErrors:
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
    if block.shared_variance is not None:
        shared = (probs * block.shared_variance * block.growth**2).sum(axis=-1, keepdims=True)
        correlated = correlated + shared
        variance = variance + shared * rows.spread**2
    errors = block.hard * block.growth
    hard_sq = (probs * errors * errors).sum(axis=-1, keepdims=True) + sink * sink_hard**2
    scale_spread, scale_mean = _scale_constant(block, rows, sink, sink_logit)
    reach = np.float32(confidence * U) * np.sqrt(correlated)
    return _RowErrors(
        correlated=correlated,
        deviation=np.sqrt(variance),
        hard=rows.spread * (np.sqrt(hard_sq) + scale_spread),
        mean_hard=(probs * errors).sum(axis=-1, keepdims=True) + sink * sink_hard,
        scale=scale_mean,
        inflation=inflation(reach),
    )


def _row_max(array: Real) -> Real:
    largest: Real = array.max(axis=-1, keepdims=True, initial=0.0)
    return largest


def _scale_constant(block: ScoreBlock, rows: _Rows, sink: Real, sink_logit: Real | float) -> tuple[Real, Real]:
    """Error from rounding the constants scale and log2(e) once each: relative, equal for all keys; units of U.

    Returns its effect on the weights (a standard deviation, because a common shift cancels) and on lse (a mean).
    """
    probs, two = block.probs, np.float32(2.0)
    mean_gap = (probs * block.gap).sum(axis=-1, keepdims=True)
    mean_gap_sq = (probs * block.gap * block.gap).sum(axis=-1, keepdims=True)
    if block.scaled is None and np.ndim(sink_logit) == 0:
        return two * np.sqrt(np.maximum(mean_gap_sq - mean_gap**2, 0) + np.float32(3e-6) * mean_gap_sq), two * mean_gap
    # With a bias, softcap or sink the scores have parts that the constants do not multiply: no shift cancels.
    scores_sq = mean_gap_sq + sink * rows.sink_gap[..., None] ** 2
    dots = block.gap if block.scaled is None else block.scaled
    dots_sq = (probs * dots * dots).sum(axis=-1, keepdims=True) + sink * sink_logit**2
    spread = two * (np.sqrt(scores_sq) + np.sqrt(dots_sq))
    return spread, spread


def _combine(
    ops: Operands,
    rounds: Roundings,
    block: ScoreBlock,
    maxima: RowMaxima,
    rows: _Rows,
    rounding: _ProbsRounding | None,
    confidence: float,
) -> ForwardBlock:
    errors = _row_errors(ops, block, rows, rounds, confidence)
    worst = _worst_exponent(ops, rounds, block, rows, maxima)
    out = _out_terms(ops, rounds, block, maxima, rows, rounding, errors, worst, confidence)
    lse = _lse_terms(rounds, block, maxima, rows, rounding, errors, worst)
    return ForwardBlock(
        out=out,
        lse=lse,
        rounded_probs=None if rounding is None else rounding.variance,
        key_ratio=rows.key_ratio,
        lse_variance=total(lse.variance.values()) / U**2,
        lse_hard=total(lse.hard.values()),
        out_variance=total(value for name, value in out.variance.items() if name not in ("exponent", "probs rounding")),
        out_hard=total(out.hard.values()),
        out_worst=out.worst,
        out_overflows=np.any(np.abs(ops.out[:, block.rows]) + out.worst >= rounds.out.max_finite, axis=-1),
        lse_worst=lse.worst,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _WorstExponent:
    tau: Real
    """(heads, rows, 1): |O^ - O| <= tau sd."""
    determined: Real
    """bool (heads, rows, 1): no exponent error of the row exceeds DETERMINED."""
    lse: Float64
    """(heads, rows): shift of lse."""


def _worst_sink(ops: Operands, rounds: Roundings, rows: _Rows, maxima: RowMaxima) -> Real:
    """Worst relative error of the sink's weight, (heads, rows, 1); 0 without sink."""
    if ops.sink is None:
        return np.zeros((*maxima.peak.shape, 1), dtype=np.float32)
    exponentials, shift = rounds.rescales + 1, rounds.shift_error
    steps = (2.0 * rounds.arithmetic.exp_ulp + 1.0) * exponentials + (3.0 + shift) * rows.sink_gap
    steps = steps + 2.0 * np.abs(ops.sink)[:, None] + shift * np.abs(maxima.peak)
    return np.expm1(np.minimum(U * steps, 50.0)).astype(np.float32)[..., None]


def _worst_exponent(
    ops: Operands, rounds: Roundings, block: ScoreBlock, rows: _Rows, maxima: RowMaxima
) -> _WorstExponent:
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
    return _WorstExponent(tau=tau, determined=determined, lse=shift)


def _out_terms(
    ops: Operands,
    rounds: Roundings,
    block: ScoreBlock,
    maxima: RowMaxima,
    rows: _Rows,
    rounding: _ProbsRounding | None,
    errors: _RowErrors,
    worst: _WorstExponent,
    confidence: float,
) -> Terms:
    unit, tiles = ops.v.unit, rounds.tiles_k
    count = maxima.visible[..., None]
    half = (rows.mean_abs + rows.out_abs) * np.float32(0.5)
    grow = errors.inflation
    accumulate = KAPPA_SQ * U**2 * ((count + tiles + 2.0) / 3.0 * (half**2 + rows.out_abs**2) + 4.0 * rows.out_abs**2)
    hard = {"exponent": U * errors.hard * grow}
    variance = {"exponent": (U * errors.deviation * grow) ** 2, "accumulation": accumulate * grow**2}
    if rounds.truncates:
        hard["truncation"] = rounds.step * (rounds.steps(count) + tiles) * half
    if block.dropout is not None:
        hard["dropout scale"] = dropout_scale_error(ops.sequence.dropout_p) * rows.out_abs
    if rounds.arithmetic.rounds_out_per_tile:
        low = rounds.out
        # The un-normalised accumulator is rounded after the last tile too, before the division and dropout's factor.
        absolute = low.half_subnormal * ops.dropout_factor / unit
        variance["out rounded per tile"] = tiles * (KAPPA_SQ * (low.unit_roundoff * half) ** 2 + absolute**2)
    rounded_hard: Real = np.zeros((1, 1, 1))
    if rounding is not None:
        variance["probs rounding"] = U**2 * _rounding_onto_values(ops, rounds, block, rows, rounding) * grow**2
        rounded_hard = U * ops.onto_rows(_dropped(rounding.bound, block.dropout), ops.v.magnitude)
        if rounds.arithmetic.sum_rounded_probs:
            rounded_hard = rounded_hard + U * rounding.bound.sum(axis=-1, keepdims=True) * rows.out_abs
    growth = rounds.growth(rounds.steps(count) + tiles + 2.0)
    carried = np.where(worst.determined, (1 + worst.tau) * (growth * rows.mean_abs + rounded_hard), np.inf)
    carried = np.minimum(carried, _largest_rounding(ops, rounds, rows, count, growth))
    fixed = (growth + 3 * U) * rows.out_abs + carried
    fixed = fixed + hard.get("dropout scale", 0.0)
    if "out rounded per tile" in variance:
        underflow = rounds.out.half_subnormal * ops.dropout_factor / unit
        fixed = fixed + tiles * (rounds.out.unit_roundoff * rows.mean_abs + underflow)
    moved = np.where(worst.determined, worst.tau * rows.spread, np.inf)
    limit = np.minimum(moved, rows.hull) + fixed
    # One-winner rows: the rounding of P counts at most in full, not confidence times its deviation.
    apart = total(value for name, value in variance.items() if name != "probs rounding")
    certain = total(hard.values()) + rounded_hard * grow + confidence * np.sqrt(apart)
    if block.undetermined is not None:
        certain = _undetermined(block, certain)
        hard["exponent"] = _undetermined(block, hard["exponent"])
    floor = count * (TINY_WEIGHT + FLUSH * (1.0 + 1.0 / unit))
    hard["underflow"] = floor
    limit = np.minimum(limit, certain) * SAFETY + floor
    limit = _uncheckable_rows(limit, rounds, block, ops, maxima, rows)
    seen = count > 0
    return scale_terms(hard, variance, limit, unit=unit, seen=seen)


def scale_terms(
    hard: Mapping[str, Real], variance: Mapping[str, Real], limit: Real, *, unit: float, seen: Real
) -> Terms:
    """Terms in real units, exactly 0 where nothing contributes. `limit` already contains SAFETY."""
    everywhere = bool(np.all(seen))

    def scale(values: Real, factor: float) -> Float64:
        # In fp64: a variance below 1e-38 would vanish in fp32.
        real: Float64 = np.multiply(values, factor, dtype=np.float64)
        return real if everywhere else np.where(seen, real, 0.0)

    return Terms(
        hard={name: scale(value, unit * SAFETY) for name, value in hard.items()},
        variance={name: scale(value, (unit * SAFETY) ** 2) for name, value in variance.items()},
        worst=scale(limit, unit),
    )


def _dropped(weights: Real, factor: Real | None) -> Real:
    return weights if factor is None else weights * factor


def _rounding_onto_values(
    ops: Operands, rounds: Roundings, block: ScoreBlock, rows: _Rows, rounding: _ProbsRounding
) -> Real:
    """Variance of sum_j b_j Z_j V_j, or of sum_j b_j (Z_j V_j - O) where the row sum contains the same errors."""
    factor = block.dropout
    if not rounds.arithmetic.sum_rounded_probs:
        return ops.onto_rows(_dropped(rounding.variance, None if factor is None else factor * factor), ops.v.square)
    centred = ops.v.values - rows.centre
    off = rows.out - np.repeat(rows.centre, ops.group, axis=0)
    once = _dropped(rounding.variance, factor)
    spread = ops.onto_rows(_dropped(once, factor), rows.centred_sq)
    cross = ops.onto_rows(once, centred)
    whole = rounding.variance.sum(axis=-1, keepdims=True)
    variance: Real = np.maximum(spread - 2 * off * cross + off**2 * whole, np.float32(0))
    return variance


def _undetermined(block: ScoreBlock, terms: Real) -> Real:
    """inf in rows with a weight that the arithmetic does not determine: only the hull of V bounds them."""
    assert block.undetermined is not None
    rows = np.asarray(block.undetermined.any(axis=-1))[..., None]
    return np.where(rows, np.inf, terms)


def _largest_rounding(ops: Operands, rounds: Roundings, rows: _Rows, count: Float64, growth: Real) -> Float64:
    """Rounding of P and accumulation for any weights: they sum to 1 and are at most eta off below the normals."""
    relative = rounds.u_probs + rounds.u_probs_normalised
    names = [rounds.arithmetic.probs_dtype] if rounds.u_probs else []
    names += [rounds.arithmetic.probs_normalised_dtype] if rounds.u_probs_normalised else []
    absolute = np.minimum(1.0, count * sum(float_format(name).half_subnormal for name in names))
    factor = 2.0 if rounds.arithmetic.sum_rounded_probs else 1.0
    largest = rows.farthest + rows.out_abs
    reach: Float64 = factor * (relative + absolute + growth) * largest
    return reach


def _uncheckable_rows(
    limit: Real, rounds: Roundings, block: ScoreBlock, ops: Operands, maxima: RowMaxima, rows: _Rows
) -> Real:
    """inf where a score, or the un-normalised accumulator in its format, may overflow."""
    if block.uncheckable is not None:
        limit = np.where(block.uncheckable.any(axis=-1, keepdims=True), np.inf, limit)
    form = rounds.out if rounds.arithmetic.rounds_out_per_tile else FP32
    # A maximum that moves lazily leaves weights up to 2^8.
    top = form.max_finite / (1.0 if rounds.arithmetic.argmax_exact else 256.0)
    if ops.v.unit * max(ops.k.shape[1], 1) >= top:
        reached = ops.v.unit * rows.mean_abs.astype(np.float64) * np.exp(maxima.log_sum)[..., None]
        limit = np.where(reached >= top, np.inf, limit)
    return limit


def total(values: Iterable[Real]) -> Real:
    """Sum of at least one array."""
    first, *others = values
    for value in others:
        first = first + value
    return first


def dropout_scale_error(dropout_p: float) -> float:
    """Relative error of the constant 1/(1-p) in fp32: p, 1-p and the quotient are rounded."""
    return U * (2.0 + dropout_p / (1.0 - dropout_p)) if dropout_p else 0.0


def _lse_terms(
    rounds: Roundings,
    block: ScoreBlock,
    maxima: RowMaxima,
    rows: _Rows,
    rounding: _ProbsRounding | None,
    errors: _RowErrors,
    worst: _WorstExponent,
) -> Terms:
    alive = maxima.alive
    count = maxima.visible + (rows.sink_probs > 0) + rounds.tiles_k
    lse = maxima.lse
    final = U * np.abs(maxima.peak) * (1.0 + rounds.shift_error)
    final = final + 2.0 * U * rounds.arithmetic.log_ulp * np.abs(maxima.log_sum) + U * np.abs(lse) + half_ulp(FP32, lse)
    exponent = U * SAFETY * ((errors.mean_hard + errors.scale) * errors.inflation)[..., 0]
    if block.undetermined is not None:
        exponent = np.where(block.undetermined.any(axis=-1), np.inf, exponent)
    variance = {
        "exponent": (U * SAFETY) ** 2 * (errors.correlated * errors.inflation**2)[..., 0].astype(np.float64),
        "accumulation": KAPPA_SQ * U**2 * count / 3.0,
    }
    limit = SAFETY * worst.lse + (count + 2.0) * U * 1.01 + 2.0 * U * np.abs(maxima.log_sum) + final
    if rounding is not None and rounds.arithmetic.sum_rounded_probs:
        variance["probs rounding"] = U**2 * rounding.variance.sum(axis=-1).astype(np.float64)
        limit = limit + U * 1.01 * rounding.bound.sum(axis=-1)
    if block.uncheckable is not None:
        limit = np.where(block.uncheckable.any(axis=-1), np.inf, limit)
    hard = {"exponent": exponent.astype(np.float64), "final roundings": final}
    return Terms(
        hard={name: np.where(alive, value, 0.0) for name, value in hard.items()},
        variance={name: np.where(alive, value, 0.0) for name, value in variance.items()},
        worst=np.where(alive, limit, 0.0),
    )
