"""Bounds of what a block of rows gives: dq, dbias and dsink, sums of the errors of dS.

Formulas: docs/tolerances.md, section Backward.
"""

from __future__ import annotations

import numpy as np

from verify.dense import Float64
from verify.dtypes import float_format
from verify.tolerance.delta_errors import RowErrors
from verify.tolerance.equal_addends import repeated_over_keys, repeated_weights
from verify.tolerance.equal_rows import Groups, over_keys, over_rows_of_a_head, raised
from verify.tolerance.forward_terms import ForwardBlock
from verify.tolerance.gradient_errors import GradientErrors
from verify.tolerance.gradient_terms import also, as_rows, finish, repeated_variance, repeated_worst, underflow_floor
from verify.tolerance.operands import Operands, magnitudes
from verify.tolerance.probs_rounding import rounding_bound, rounding_variance
from verify.tolerance.repetition import INDEPENDENT
from verify.tolerance.roundings import KAPPA_SQ, Real, Roundings, U
from verify.tolerance.scores import RowMaxima, ScoreBlock
from verify.tolerance.swallowed import swallowed_over_keys
from verify.tolerance.terms import PREDICTED, PRESCALED, Terms, somewhere_hidden
from verify.tolerance.terms import total as sum_terms

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
    value = magnitudes(reference) / unit
    half = 0.5 * (total + value)
    grown = _row_inflation(block, errors)
    independent = raised(errors.own_exponent, forward.key_ratio)
    independent = independent + raised(errors.products, over_keys(ops, block, ops.value_groups))
    for rounding in errors.stored:
        independent = independent + rounding.over_keys()
    count = maxima.visible[..., None]
    steps = rounds.steps(count) + rounds.tiles_k + 2.0
    equal = repeated_over_keys(ops, errors.dscores_sloped, keys.values)
    repeats = 1.0 if equal is None else equal
    variance = {
        "dscores": U**2 * ops.onto_rows(independent, keys.square),
        "delta": U**2 * (grown**2 * rows.delta_variance[..., None]) * mean_keys**2,
        "lse": U**2 * grown**2 * rows.lse_variance[..., None] * value**2,
        "accumulation": KAPPA_SQ * U**2 * (steps / 3.0 * repeats * half**2 + 4.0 * value**2),
    }
    own = errors.hard if errors.prescaled is None else np.maximum(errors.hard - errors.prescaled, 0)
    hard = {
        "dscores": U * ops.onto_rows(own, keys.magnitude),
        "delta": U * grown * (rows.delta_hard - rows.delta_prescaled)[..., None] * mean_keys,
        "lse": U * grown * (rows.lse_hard - rows.lse_prescaled)[..., None] * value,
        PREDICTED: grown * np.abs(rows.delta_predicted)[..., None] * mean_keys,
    }
    if errors.prescaled is not None:
        of_rows = rows.delta_prescaled[..., None] * mean_keys + rows.lse_prescaled[..., None] * value
        hard[PRESCALED] = U * (ops.onto_rows(errors.prescaled, keys.magnitude) + grown * of_rows)
    if rounds.truncates:
        hard["truncation"] = rounds.step * steps * half
    else:
        lost = swallowed_over_keys(ops, errors.dscores_sloped, keys.magnitude, total, half)
        if lost is not None:
            hard["swallowed"] = lost
    row_worst = errors.worst_exponent * sloped * as_rows(rows.delta_worst)
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
        variance["rounded per tile"] = repeated_variance(size, rounds.grad, stretched, times)
        limit = limit + times * repeated_worst(total + limit, rounds.grad, stretched)
        overflow = also(overflow, unit * (total + limit) >= rounds.grad.max_finite)
    if rounds.arithmetic.dq_unscaled_dtype != "fp32":
        form = float_format(rounds.arithmetic.dq_unscaled_dtype)
        size = np.sqrt(value**2 + sum_terms(variance.values())) + sum_terms(hard.values())
        variance["unscaled"] = repeated_variance(size, form, unit / scale, 1)
        limit = limit + repeated_worst(value + limit, form, unit / scale)
        overflow = also(overflow, unit / scale * (value + limit) >= form.max_finite)
    floor = underflow_floor(count, unit, max(scale, 1.0), errors.largest)
    return finish(hard, variance, limit, floor, unit=unit, seen=somewhere_hidden(count > 0), overflow=overflow)


def bias_terms(
    block: ScoreBlock,
    rows: RowErrors,
    errors: GradientErrors,
    rounds: Roundings,
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
    rise = 1.0 + errors.worst_exponent.astype(np.float64)
    delta_worst = rise * probs * rows.delta_worst[..., None]
    limit = errors.unsloped_worst.astype(np.float64)
    if rounds.u_dscores:
        # As for dq: the computed dS is rounded, with its error, which decides alone where dS vanishes.
        form = float_format(rounds.arithmetic.dscores_dtype)
        smallest = form.half_subnormal / rows.unit
        spread = U**2 * (errors.unsloped_hard**2 + (grown * probs * rows.delta_hard[..., None]) ** 2)
        size = np.sqrt(errors.dscores**2 + variance["dscores"] + variance["delta"] + spread)
        rounded = rounding_bound(size, form, smallest)
        variance["dscores"] = variance["dscores"] + U**2 * rounding_variance(size, rounded, form)
        limit = limit + U * rounding_bound(errors.dscores + limit + delta_worst, form, smallest)
    hard = {
        "dscores": U * errors.unsloped_hard.astype(np.float64),
        "delta": U * grown * probs * rows.delta_hard[..., None],
        PREDICTED: grown * probs * np.abs(rows.delta_predicted)[..., None],
        "lse": U * grown * errors.dscores * rows.lse_hard[..., None],
    }
    limit = limit + delta_worst + (planes + 4) * U * errors.dscores
    floor = underflow_floor(np.ones(()), rows.unit, 1.0, errors.largest)
    return finish(hard, variance, limit, floor, unit=rows.unit, seen=block.keep, overflow=errors.uncheckable)


def sink_terms(
    ops: Operands,
    rounds: Roundings,
    maxima: RowMaxima,
    rows: RowErrors,
    alike: Groups,
    summed: tuple[int, int],
) -> Terms:
    """Terms of dsink = sum_i P_sink,i (dlse_i - delta_i), (heads,), from all rows of a sequence.

    Parameters
    ----------
    alike : groups
        Rows of equal P (`equal_weights`).
    summed : (int, int)
        Rows of the whole case and sequences that they come from: the sum runs over all of them.
    """
    assert ops.sink is not None
    dlse = ops.dlse
    logit = np.abs(ops.sink)[:, None]
    probs = np.where(maxima.alive, np.exp(np.minimum(ops.sink[:, None] - maxima.lse, 0.0)), 0.0)
    value = rows.delta if dlse is None else rows.delta - dlse / rows.unit
    weighted = probs * np.abs(value)
    parts = np.abs(rows.delta) if dlse is None else np.abs(rows.delta) + np.abs(dlse) / rows.unit
    exponent = rows.lse_variance + KAPPA_SQ * (2.0 * logit**2 + 6.0 * (maxima.lse - ops.sink[:, None]) ** 2)
    own_exp = 2.0 * rounds.arithmetic.exp_ulp
    count, sequences = float(summed[0] + 2), float(summed[1])
    reach = weighted.sum(axis=1)
    same_dout = [ops.dout_groups] if rounds.arithmetic.delta_from == "dprobs" else []
    times = over_rows_of_a_head(ops, ops.query_groups, alike, *same_dout)
    delta_variance = (rows.delta_variance + 3.0 * KAPPA_SQ * parts**2) * times
    repeated = repeated_weights(weighted.astype(np.float32)) if weighted.shape[1] > INDEPENDENT else 1.0
    variance = {
        "exponent": U**2 * (weighted**2 * exponent * times).sum(axis=1),
        "delta": U**2 * (probs**2 * delta_variance).sum(axis=1),
        "accumulation": KAPPA_SQ * U**2 * count * repeated * sequences * reach**2,
    }
    hard = {
        "exponent": U * (weighted * (rows.lse_hard + own_exp)).sum(axis=1),
        "delta": U * (probs * rows.delta_hard).sum(axis=1),
        PREDICTED: np.abs((probs * rows.delta_predicted).sum(axis=1)),
    }
    worst_exponent = rows.lse_worst + U * (own_exp + 2.0 * logit + 6.0 * np.abs(maxima.lse - ops.sink[:, None]))
    grown = np.expm1(np.minimum(worst_exponent, 30.0))
    limit = (weighted * grown + (1 + grown) * probs * (rows.delta_worst + 3 * U * parts)).sum(axis=1)
    limit = limit + 1.01 * count * U * reach
    floor = underflow_floor(np.full(limit.shape, count), rows.unit, 1.0)
    return finish(
        hard,
        variance,
        limit,
        floor,
        unit=rows.unit,
        seen=None,
        overflow=np.asarray(rows.delta_overflows.any(axis=1)),
    )


def _row_inflation(block: ScoreBlock, errors: GradientErrors) -> Float64:
    """Largest inflation among the weights of a row that count, (heads, rows, 1)."""
    counted: Real = np.where(block.probs > SEEN_WEIGHT, errors.inflation, np.float32(1))
    largest: Float64 = counted.max(axis=-1, keepdims=True, initial=1.0).astype(np.float64)
    return largest
