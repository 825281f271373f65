"""Bounds of what a block of keys receives: dk and dv, sums over the rows of a group.

Formulas: docs/tolerances.md, section Backward.
"""

from __future__ import annotations

import numpy as np

from verify.dense import Float64
from verify.dtypes import float_format
from verify.tolerance.delta_errors import RowErrors, storing
from verify.tolerance.equal_addends import repeated_over_rows
from verify.tolerance.equal_rows import RowRatios, larger, raised
from verify.tolerance.gradient_errors import GradientErrors
from verify.tolerance.gradient_terms import (
    also,
    as_rows,
    column_bin_factor,
    finish,
    repeated_variance,
    repeated_worst,
    underflow_floor,
)
from verify.tolerance.operands import Operands, Scaled, magnitudes
from verify.tolerance.probs_rounding import rounding_bound, rounding_variance
from verify.tolerance.roundings import KAPPA_SQ, Real, Roundings, U
from verify.tolerance.scores import ScoreBlock
from verify.tolerance.swallowed import swallowed_over_rows
from verify.tolerance.terms import PREDICTED, Terms, somewhere_hidden
from verify.tolerance.terms import total as sum_terms


def key_terms(
    ops: Operands,
    rounds: Roundings,
    block: ScoreBlock,
    rows: RowErrors,
    errors: GradientErrors,
    reference: Float64,
    counts: Float64,
    ratios: RowRatios,
) -> Terms:
    """Terms of dk for keys whose block spans all rows; reference dk (kv heads, keys, head_dim).

    Parameters
    ----------
    counts : fp64 (kv heads, keys, 1)
        Rows of the group that see each key.
    ratios : RowRatios
        Of the block.
    """
    queries, scale = ops.q_scaled, ops.sequence.softmax_scale
    unit = scale * rows.unit * queries.unit
    sloped = block.probs if block.slope is None else block.probs * block.slope
    grown = errors.inflation * sloped
    centred = errors.inflation * errors.dscores_sloped
    row_variance = grown**2 * as_rows(rows.delta_variance) + centred**2 * as_rows(rows.lse_variance)
    from_probs = rounds.arithmetic.delta_from == "dprobs"
    independent = raised(row_variance, larger(ratios.weights, ratios.douts) if from_probs else ratios.weights)
    independent = independent + raised(errors.own_exponent, ratios.queries)
    independent = independent + raised(errors.products, ratios.douts)
    for rounding in errors.stored:
        independent = independent + rounding.over_rows(ops)
    hard_weights = errors.hard + grown * as_rows(rows.delta_hard) + centred * as_rows(rows.lse_hard)
    worst = errors.worst + sloped * as_rows(rows.delta_worst) * (1 + errors.worst_exponent)
    total = ops.onto_keys(errors.dscores_sloped, queries.magnitude)
    variance = {"dscores": U**2 * ops.onto_keys(independent, queries.square)}
    hard = {
        "dscores": U * ops.onto_keys(hard_weights, queries.magnitude),
        PREDICTED: np.abs(ops.onto_keys(grown * as_rows(rows.delta_predicted), queries.values)),
    }
    limit = ops.onto_keys(worst, queries.magnitude)
    if errors.signed is not None:
        bound, spread, predicted = _scaled_query_rounding(rounds, queries, scale)
        variance["scaled q"] = U**2 * ops.onto_keys(raised(errors.dscores_sloped**2, ratios.queries), spread)
        hard["scaled q"] = np.abs(ops.onto_keys(errors.signed, predicted))
        limit = limit + U * ops.onto_keys(errors.dscores_sloped + worst, bound)
    return _summed(
        ops,
        rounds,
        weights=errors.dscores_sloped,
        values=queries,
        variance=variance,
        hard=hard,
        limit=limit,
        total=total,
        value=magnitudes(reference) / unit,
        counts=counts,
        unit=unit,
        stretch=max(scale, 1.0),
        largest=errors.largest,
        overflow=_column_overflow(ops, errors.uncheckable),
    )


def _scaled_query_rounding(rounds: Roundings, queries: Scaled, scale: float) -> tuple[Real, Real, Real]:
    """Rounding of the stored q times the scale: bound (U), variance (U^2) and its own value, in units of the queries.

    q is known, so its rounding is: rows whose numbers are equal in a channel err to one side together.
    """
    form, unit = rounds.storage, queries.unit * scale
    bound = rounding_bound(queries.magnitude, form, form.half_subnormal / unit)
    predicted = (storing(queries.values.astype(np.float64) * unit, form) / unit).astype(np.float32)
    return bound, rounding_variance(queries.magnitude, bound, form), predicted


def value_terms(
    ops: Operands,
    rounds: Roundings,
    block: ScoreBlock,
    errors: GradientErrors,
    dout: Scaled,
    reference: Float64,
    counts: Float64,
    ratios: RowRatios,
) -> Terms:
    """Terms of dv for keys whose block spans all rows; reference dv (kv heads, keys, head_dim_v)."""
    factor = np.float32(1) if block.dropout is None else block.dropout
    weights = block.probs * factor
    swollen = weights * errors.inflation
    exponent = raised(errors.exponent_variance, ratios.queries)
    exponent = swollen * swollen * (exponent + raised(errors.row_exponent_variance, ratios.weights))
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
        ops,
        rounds,
        weights=weights,
        values=dout,
        variance=variance,
        hard={"exponent": U * ops.onto_keys(hard_weights, dout.magnitude)},
        limit=ops.onto_keys(limit_weights, dout.magnitude),
        total=ops.onto_keys(weights, dout.magnitude),
        value=magnitudes(reference) / dout.unit,
        counts=counts,
        unit=dout.unit,
        stretch=ops.dropout_factor,
        largest=ops.dropout_factor,
        overflow=_column_overflow(ops, errors.uncheckable_weight),
    )


def _summed(
    ops: Operands,
    rounds: Roundings,
    *,
    weights: Real,
    values: Scaled,
    variance: dict[str, Float64],
    hard: dict[str, Float64],
    limit: Float64,
    total: Real,
    value: Float64,
    counts: Float64,
    unit: float,
    stretch: float,
    largest: float,
    overflow: Real | None,
) -> Terms:
    """Add what the sum of weights * values over the rows of a group costs: accumulation, roundings per tile and group.

    `stretch` >= 1 is the factor that a kernel may apply after the sum, so it multiplies the underflow of partial sums;
    `largest` goes to `underflow_floor`.
    """
    half, group = 0.5 * (total + value), ops.group
    steps = rounds.steps(counts) + 2.0
    equal = repeated_over_rows(ops, weights, values.values)
    repeats = 1.0 if equal is None else equal
    variance["accumulation"] = KAPPA_SQ * U**2 * (steps / 3.0 * repeats * half**2 + 4.0 * value**2)
    if rounds.truncates:
        hard["truncation"] = rounds.step * steps * half
    else:
        lost = swallowed_over_rows(ops, weights, values.magnitude, total, half)
        if lost is not None:
            hard["swallowed"] = lost
    limit = limit + (rounds.growth(steps) + 2 * U) * total
    # The last rounding of a single head is that of the output; the heads of a group are rounded before their sum too.
    times = rounds.tiles_q - 1 if group == 1 else rounds.tiles_q * group
    if rounds.arithmetic.rounds_dkv_per_tile and times:
        size = np.sqrt(half**2 + sum_terms(variance.values()))
        variance["rounded per tile"] = repeated_variance(size, rounds.grad, unit / stretch, times)
        limit = limit + times * repeated_worst(total + limit, rounds.grad, unit / stretch)
        overflow = also(overflow, unit * (total + limit) >= rounds.grad.max_finite)
    if group > 1 and rounds.arithmetic.group_sum_dtype != "fp32":
        form = float_format(rounds.arithmetic.group_sum_dtype)
        times = 2 * group - 1
        variance["group sum"] = repeated_variance(total, form, unit, times)
        limit = limit + times * repeated_worst(total, form, unit)
        overflow = also(overflow, unit * (total + limit) >= form.max_finite)
    floor = underflow_floor(counts, unit, stretch, largest)
    return finish(hard, variance, limit, floor, unit=unit, seen=somewhere_hidden(counts > 0), overflow=overflow)


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
        variance = rounding_variance(block.probs, one, form) * column_bin_factor(ops, block.probs, form)
        bound = one if bound is None else bound + one
        spread = variance if spread is None else spread + variance
    return None if bound is None or spread is None else (bound, spread)


def _column_overflow(ops: Operands, uncheckable: Real | None) -> Real | None:
    if uncheckable is None:
        return None
    hit: Real = np.asarray(ops.stack(uncheckable).any(axis=1))
    return hit[..., None]
