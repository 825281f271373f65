"""Bounds of dq, dbias and dsink from a block of rows, of dk and dv from a block of keys: sums of errors of dS and P.

Formulas: docs/tolerances.md, section Backward.
"""

from __future__ import annotations

import numpy as np

from verify.dense import Float64
from verify.dtypes import FloatFormat, float_format
from verify.tolerance.correlation import bin_factor, group_ratio
from verify.tolerance.forward_terms import ForwardBlock
from verify.tolerance.gradient_errors import GradientErrors, RowErrors
from verify.tolerance.operands import Operands, Scaled
from verify.tolerance.probs_rounding import rounding_bound, rounding_variance
from verify.tolerance.roundings import FLUSH, KAPPA_SQ, SAFETY, TINY_WEIGHT, Real, Roundings, U
from verify.tolerance.scores import RowMaxima, ScoreBlock
from verify.tolerance.terms import Terms, scale_terms
from verify.tolerance.terms import total as sum_of

SEEN_WEIGHT = 1e-12
"""Weights below this do not set the inflation that a whole row shares; their own terms carry their own."""


def query_terms(
    ops: Operands,
    rounds: Roundings,
    block: ScoreBlock,
    maxima: RowMaxima,
    rows: RowErrors,
    errors: GradientErrors,
    forward: ForwardBlock,
    reference: Float64,
) -> Terms:
    """Terms of dq for rows whose block spans all keys; reference dq (heads, rows, head_dim).

    Notes
    -----
    Errors common to a row enter exactly: that of lse as dL dQ, that of delta as s dD (P K), not as s dD P|K|.
    """
    keys, scale = ops.k_scaled, ops.sequence.softmax_scale
    unit = scale * rows.unit * keys.unit
    sloped = block.probs if block.slope is None else block.probs * block.slope
    mean_keys = np.abs(ops.onto_rows(sloped, keys.values))
    total = ops.onto_rows(errors.dscores_sloped, keys.magnitude)
    value = np.abs(np.nan_to_num(reference)) / unit
    half = 0.5 * (total + value)
    grown = _row_inflation(block, errors)
    independent = errors.independent if forward.key_ratio is None else errors.independent * forward.key_ratio
    count = maxima.visible[..., None]
    steps = rounds.steps(count) + rounds.tiles_k + 2.0
    variance = {
        "dscores": U**2 * ops.onto_rows(independent, keys.square),
        "delta": U**2 * (grown**2 * rows.delta_variance[..., None]) * mean_keys**2,
        "lse": U**2 * grown**2 * rows.lse_variance[..., None] * value**2,
        "accumulation": KAPPA_SQ * U**2 * (steps / 3.0 * half**2 + 4.0 * value**2),
    }
    hard = {
        "dscores": U * ops.onto_rows(errors.hard, keys.magnitude),
        "delta": U * grown * rows.delta_hard[..., None] * mean_keys,
        "lse": U * grown * rows.lse_hard[..., None] * value,
    }
    if rounds.truncates:
        hard["truncation"] = rounds.step * steps * half
    row_worst = (errors.worst_exponent + np.float32(rounds.u_dscores)) * sloped * _rows(rows.delta_worst)
    limit = ops.onto_rows(errors.worst + row_worst, keys.magnitude) + rows.delta_worst[..., None] * mean_keys
    limit = limit + (rounds.growth(steps) + 2 * U) * total
    overflow = None if errors.uncheckable is None else np.asarray(errors.uncheckable.any(axis=-1))[..., None]
    if rounds.arithmetic.rounds_dq_per_tile and rounds.tiles_k > 1:
        times = rounds.tiles_k - 1
        # Partial sums hold the errors as well, and over a tile of keys those of delta do not cancel as over all.
        unsigned = ops.onto_rows(sloped, keys.magnitude)
        noise = variance["dscores"] + U**2 * (rows.delta_variance + rows.delta_hard**2)[..., None] * unsigned**2
        size = np.sqrt(half**2 + noise)
        stretched = unit / max(scale, 1.0)
        variance["rounded per tile"] = _repeated_variance(size, rounds.grad, stretched, times)
        limit = limit + times * _repeated_worst(total + limit, rounds.grad, stretched)
        overflow = _also(overflow, unit * (total + limit) >= rounds.grad.max_finite)
    floor = _floor(count, unit, max(scale, 1.0))
    return finish(hard, variance, limit, floor, unit=unit, seen=count > 0, overflow=overflow)


def bias_terms(
    block: ScoreBlock,
    rows: RowErrors,
    errors: GradientErrors,
    rounds: Roundings,
    keep: Real | None,
    planes: int,
) -> Terms:
    """Terms of dbias = dS before the softcap's factor, (heads, rows, keys), one plane of `planes` that are summed.

    The partial sums of so many planes are at most sum |dS|, and (sum |dS|)^2 <= planes * sum dS^2.
    """
    probs = block.probs
    common = rows.lse_variance[..., None] * errors.dscores.astype(np.float64) ** 2
    grown = errors.inflation.astype(np.float64)
    variance = {
        "dscores": U**2 * errors.unsloped.astype(np.float64),
        "delta": U**2 * (grown * probs) ** 2 * rows.delta_variance[..., None],
        "lse": U**2 * grown**2 * common,
        "accumulation": KAPPA_SQ * U**2 * (planes - 1) * planes * errors.dscores.astype(np.float64) ** 2,
    }
    if rounds.u_dscores:
        form = float_format(rounds.arithmetic.dscores_dtype)
        rounded = rounding_bound(errors.dscores, form, form.half_subnormal / rows.unit)
        variance["dscores"] = variance["dscores"] + U**2 * rounding_variance(errors.dscores, rounded, form)
    own = errors.hard if block.slope is None else errors.hard / np.maximum(block.slope, np.float32(1e-6))
    hard = {
        "dscores": U * own.astype(np.float64),
        "delta": U * grown * probs * rows.delta_hard[..., None],
        "lse": U * grown * errors.dscores * rows.lse_hard[..., None],
    }
    rise = 1.0 + errors.worst_exponent.astype(np.float64)
    limit = errors.worst.astype(np.float64)
    if block.slope is not None:
        limit = limit / np.maximum(block.slope, np.float32(1e-6))
    limit = limit + rise * probs * rows.delta_worst[..., None] + (planes + 4) * U * errors.dscores
    seen = np.ones(probs.shape, dtype=bool) if keep is None else np.broadcast_to(keep, probs.shape)
    floor = _floor(np.ones(()), rows.unit, 1.0)
    return finish(hard, variance, limit, floor, unit=rows.unit, seen=seen, overflow=errors.uncheckable)


def sink_terms(
    ops: Operands,
    rounds: Roundings,
    maxima: RowMaxima,
    rows: RowErrors,
    dlse: Float64 | None,
    summed: tuple[int, int],
) -> Terms:
    """Terms of dsink = sum_i P_sink,i (dlse_i - delta_i), (heads,), from some rows.

    Parameters
    ----------
    summed : (int, int)
        Rows of the whole case and sequences that they come from: the sum runs over all of them.
    """
    assert ops.sink is not None
    logit = np.abs(ops.sink)[:, None]
    probs = np.where(maxima.alive, np.exp(np.minimum(ops.sink[:, None] - maxima.lse, 0.0)), 0.0)
    value = rows.delta if dlse is None else rows.delta - dlse / rows.unit
    weighted = probs * np.abs(value)
    parts = np.abs(rows.delta) if dlse is None else np.abs(rows.delta) + np.abs(dlse) / rows.unit
    exponent = rows.lse_variance + KAPPA_SQ * (2.0 * logit**2 + 6.0 * (maxima.lse - ops.sink[:, None]) ** 2)
    own_exp = 2.0 * rounds.arithmetic.exp_ulp
    count, sequences = float(summed[0] + 2), float(summed[1])
    reach = weighted.sum(axis=1)
    variance = {
        "exponent": U**2 * (weighted**2 * exponent).sum(axis=1),
        "delta": U**2 * (probs**2 * (rows.delta_variance + 3.0 * KAPPA_SQ * parts**2)).sum(axis=1),
        "accumulation": KAPPA_SQ * U**2 * count * sequences * reach**2,
    }
    hard = {
        "exponent": U * (weighted * (rows.lse_hard + own_exp)).sum(axis=1),
        "delta": U * (probs * rows.delta_hard).sum(axis=1),
    }
    worst_exponent = rows.lse_worst + U * (own_exp + 2.0 * logit + 6.0 * np.abs(maxima.lse - ops.sink[:, None]))
    grown = np.expm1(np.minimum(worst_exponent, 30.0))
    limit = (weighted * grown + (1 + grown) * probs * (rows.delta_worst + 3 * U * parts)).sum(axis=1)
    limit = limit + 1.01 * count * U * reach
    floor = _floor(np.full(limit.shape, count), rows.unit, 1.0)
    return finish(
        hard,
        variance,
        limit,
        floor,
        unit=rows.unit,
        seen=floor > 0,
        overflow=np.asarray(rows.delta_overflows.any(axis=1)),
    )


def key_terms(
    ops: Operands,
    rounds: Roundings,
    block: ScoreBlock,
    rows: RowErrors,
    errors: GradientErrors,
    reference: Float64,
    counts: Float64,
) -> Terms:
    """Terms of dk for keys whose block spans all rows; reference dk (kv heads, keys, head_dim).

    Parameters
    ----------
    counts : fp64 (kv heads, keys, 1)
        Rows of the group that see each key.
    """
    queries, scale = ops.q_scaled, ops.sequence.softmax_scale
    unit = scale * rows.unit * queries.unit
    sloped = block.probs if block.slope is None else block.probs * block.slope
    grown = errors.inflation * sloped
    centred = errors.inflation * errors.dscores_sloped
    row_variance = grown**2 * _rows(rows.delta_variance) + centred**2 * _rows(rows.lse_variance)
    independent = errors.independent + row_variance
    ratio = _query_ratio(ops, block)
    if ratio is not None:
        independent = independent * ratio
    hard_weights = errors.hard + grown * _rows(rows.delta_hard) + centred * _rows(rows.lse_hard)
    worst = errors.worst + sloped * _rows(rows.delta_worst) * (1 + errors.worst_exponent)
    total = ops.onto_keys(errors.dscores_sloped, queries.magnitude)
    return _summed(
        rounds,
        variance={"dscores": U**2 * ops.onto_keys(independent, queries.square)},
        hard={"dscores": U * ops.onto_keys(hard_weights, queries.magnitude)},
        limit=ops.onto_keys(worst, queries.magnitude),
        total=total,
        value=np.abs(np.nan_to_num(reference)) / unit,
        counts=counts,
        unit=unit,
        stretch=max(scale, 1.0),
        group=ops.group,
        overflow=_column_overflow(ops, errors.uncheckable),
    )


def value_terms(
    ops: Operands,
    rounds: Roundings,
    block: ScoreBlock,
    errors: GradientErrors,
    dout: Scaled,
    reference: Float64,
    counts: Float64,
) -> Terms:
    """Terms of dv for keys whose block spans all rows; reference dv (kv heads, keys, head_dim_v)."""
    factor = np.float32(1) if block.dropout is None else block.dropout
    weights = block.probs * factor
    swollen = weights * errors.inflation
    exponent = swollen * swollen * errors.exponent_variance
    ratio = _query_ratio(ops, block)
    if ratio is not None:
        exponent = exponent * ratio
    limit_weights = weights * errors.worst_exponent
    variance = {"exponent": U**2 * ops.onto_keys(exponent, dout.square)}
    rounded = _backward_probs_rounding(ops, rounds, block)
    if rounded is not None:
        bound, spread = rounded
        variance["probs rounding"] = U**2 * ops.onto_keys(spread * factor * factor, dout.square)
        limit_weights = limit_weights + np.float32(U) * bound * factor * (1 + errors.worst_exponent)
    hard_weights = swollen * errors.exponent_hard
    if block.dropout is not None:
        hard_weights = hard_weights + weights * np.float32(ops.dropout_scale_error / U)
    return _summed(
        rounds,
        variance=variance,
        hard={"exponent": U * ops.onto_keys(hard_weights, dout.magnitude)},
        limit=ops.onto_keys(limit_weights, dout.magnitude),
        total=ops.onto_keys(weights, dout.magnitude),
        value=np.abs(np.nan_to_num(reference)) / dout.unit,
        counts=counts,
        unit=dout.unit,
        stretch=ops.dropout_factor,
        group=ops.group,
        overflow=_column_overflow(ops, errors.uncheckable_weight),
    )


def finish(
    hard: dict[str, Float64],
    variance: dict[str, Float64],
    limit: Float64,
    floor: Float64,
    *,
    unit: float,
    seen: Real,
    overflow: Real | None,
) -> Terms:
    """Scale the terms to real units; exactly 0 where nothing contributes, inf where an intermediate may overflow."""
    hard["underflow"] = floor
    limit = limit * SAFETY + floor
    if overflow is not None:
        limit = np.where(overflow, np.inf, limit)
    limit = np.where(np.isnan(limit), np.inf, limit)
    return scale_terms(hard, variance, limit, unit=unit, seen=seen)


def _summed(
    rounds: Roundings,
    *,
    variance: dict[str, Float64],
    hard: dict[str, Float64],
    limit: Float64,
    total: Real,
    value: Float64,
    counts: Float64,
    unit: float,
    stretch: float,
    group: int,
    overflow: Real | None,
) -> Terms:
    """Add what summing over the rows of a group costs: accumulation, roundings per tile and over the group.

    `stretch` >= 1 is the factor that a kernel may apply after the sum, so it multiplies the underflow of partial sums.
    """
    half = 0.5 * (total + value)
    steps = rounds.steps(counts) + 2.0
    variance["accumulation"] = KAPPA_SQ * U**2 * (steps / 3.0 * half**2 + 4.0 * value**2)
    if rounds.truncates:
        hard["truncation"] = rounds.step * steps * half
    limit = limit + (rounds.growth(steps) + 2 * U) * total
    # The last rounding of a single head is that of the output; the heads of a group are rounded before their sum too.
    times = rounds.tiles_q - 1 if group == 1 else rounds.tiles_q * group
    if rounds.arithmetic.rounds_dkv_per_tile and times:
        size = np.sqrt(half**2 + sum_of(variance.values()))
        variance["rounded per tile"] = _repeated_variance(size, rounds.grad, unit / stretch, times)
        limit = limit + times * _repeated_worst(total + limit, rounds.grad, unit / stretch)
        overflow = _also(overflow, unit * (total + limit) >= rounds.grad.max_finite)
    if group > 1 and rounds.arithmetic.group_sum_dtype != "fp32":
        form = float_format(rounds.arithmetic.group_sum_dtype)
        times = 2 * group - 1
        variance["group sum"] = _repeated_variance(total, form, unit, times)
        limit = limit + times * _repeated_worst(total, form, unit)
        overflow = _also(overflow, unit * (total + limit) >= form.max_finite)
    floor = _floor(counts, unit, stretch)
    return finish(hard, variance, limit, floor, unit=unit, seen=counts > 0, overflow=overflow)


def _repeated_variance(size: Float64, form: FloatFormat, unit: float, times: int) -> Float64:
    """Variance of rounding a partial sum of at most `size` units to `form` so many times, underflow included."""
    return times * (KAPPA_SQ * (form.unit_roundoff * size) ** 2 + (form.half_subnormal / unit) ** 2 / 3.0)


def _repeated_worst(total: Real, form: FloatFormat, unit: float) -> Float64:
    worst: Float64 = form.unit_roundoff * total.astype(np.float64) + form.half_subnormal / unit
    return worst


def _floor(count: Float64, unit: float, scale: float) -> Float64:
    """Absolute error of terms too small for the fp32 of the kernel (flushed) or of this evaluation (left out)."""
    return count * (TINY_WEIGHT + FLUSH * (1.0 + scale / unit))


def _also(first: Real | None, second: Real) -> Real:
    return second if first is None else first | second


def _rows(values: Float64) -> Real:
    return values[..., None].astype(np.float32)


def _row_inflation(block: ScoreBlock, errors: GradientErrors) -> Float64:
    """Largest inflation among the weights of a row that count, (heads, rows, 1)."""
    counted: Real = np.where(block.probs > SEEN_WEIGHT, errors.inflation, np.float32(1))
    largest: Float64 = counted.max(axis=-1, keepdims=True, initial=1.0).astype(np.float64)
    return largest


def _query_ratio(ops: Operands, block: ScoreBlock) -> Real | None:
    """Column-wise weight of each query's group of equal queries over its own, (heads, rows, keys)."""
    if all(groups is None for groups in ops.query_groups):
        return None
    stacked = ops.stack(block.probs)
    ratio = np.ones(stacked.shape, dtype=np.float32)
    for kv_head, groups in enumerate(ops.query_groups):
        if groups is not None:
            by_key = np.ascontiguousarray(stacked[kv_head].T)[None]
            ratio[kv_head] = group_ratio(by_key, groups)[0].T
    return ratio.reshape(block.probs.shape)


def _backward_probs_rounding(ops: Operands, rounds: Roundings, block: ScoreBlock) -> tuple[Real, Real] | None:
    """Bound (units of U) and variance (U^2) of rounding the recomputed P before dV, without dropout's factor."""
    kept = rounds.u_probs_normalised and not rounds.arithmetic.lse_stored
    names = [rounds.arithmetic.probs_backward_dtype] if rounds.u_probs_backward else []
    names += [rounds.arithmetic.probs_normalised_dtype] if kept else []
    bound: Real | None = None
    spread: Real | None = None
    for name in names:
        form = float_format(name)
        one = rounding_bound(block.probs, form, form.half_subnormal)
        by_key = np.ascontiguousarray(ops.stack(block.probs).swapaxes(1, 2))
        factor = bin_factor(by_key, by_key, form).swapaxes(1, 2).reshape(block.probs.shape)
        variance = rounding_variance(block.probs, one, form) * factor
        bound = one if bound is None else bound + one
        spread = variance if spread is None else spread + variance
    return None if bound is None or spread is None else (bound, spread)


def _column_overflow(ops: Operands, uncheckable: Real | None) -> Real | None:
    if uncheckable is None:
        return None
    hit: Real = np.asarray(ops.stack(uncheckable).any(axis=1))
    return hit[..., None]
