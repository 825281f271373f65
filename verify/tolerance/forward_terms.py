"""Bounds of out and lse for a block of query rows, and what the backward needs of them.

Formulas: docs/tolerances.md, section Forward. Arrays of one output are (heads, rows, head_dim_v) or (heads, rows).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verify.dense import Bool, Float64
from verify.dtypes import FP32
from verify.tolerance.operands import Operands
from verify.tolerance.out_terms import OutInputs, out_terms
from verify.tolerance.probs_rounding import ProbsRounding, probs_rounding
from verify.tolerance.roundings import KAPPA_SQ, SAFETY, Real, Roundings, U
from verify.tolerance.row_exponents import ExponentErrors, WorstExponent, exponent_errors, worst_exponent
from verify.tolerance.row_sums import RowSums
from verify.tolerance.scores import RowMaxima, ScoreBlock
from verify.tolerance.swallowed import coherent
from verify.tolerance.terms import Terms, somewhere_hidden

WEIGHTWISE = ("exponent", "probs rounding")
"""Deviations of out that come from single weights: delta sees them through dP, not through the sum over channels."""


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
    lse_shared: Float64
    """The part of it that a pre-scaled q or k gives, which rows may have in common."""
    lse_hard: Float64
    """(heads, rows), absolute, without the storage of lse."""
    out_variance: Float64
    """Variance of the accumulation of out, which delta sees beside the terms of single weights."""
    out_hard: Float64
    """The same of the terms that may have one sign in all rows."""
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
    rows = RowSums.of(ops, block, maxima)
    rounding = probs_rounding(rounds, block, maxima, confidence)
    errors = exponent_errors(ops, block, rows, rounds, maxima, confidence)
    worst = worst_exponent(ops, rounds, block, rows, maxima)
    inputs = OutInputs(block=block, maxima=maxima, rows=rows, rounding=rounding, errors=errors, worst=worst)
    out = out_terms(ops, rounds, inputs, confidence)
    lse = _lse_terms(rounds, block, maxima, rows, rounding, errors, worst)
    out_worst = out.worst_case()
    return ForwardBlock(
        out=out,
        lse=lse,
        rounded_probs=None if rounding is None else rounding.variance,
        key_ratio=rows.key_ratio,
        lse_variance=lse.variance_sum() / U**2,
        lse_shared=np.square(SAFETY * errors.inflation)[..., 0].astype(np.float64) * errors.shared[..., 0],
        lse_hard=lse.hard_sum(),
        out_variance=out.variance_sum(without=WEIGHTWISE),
        out_hard=out.hard_sum() + _rounded_per_tile(rounds, out),
        out_worst=out_worst,
        out_overflows=np.any(np.abs(ops.out[:, block.rows]) + out_worst >= rounds.out.max_finite, axis=-1),
        lse_worst=lse.worst_case(),
    )


def _rounded_per_tile(rounds: Roundings, out: Terms) -> Float64 | float:
    """T roundings of one sign: what a tile adds to a sum in a short format may be below half its ulp in all rows."""
    rounded = out.variance.get("rounded per tile")
    if rounded is None:
        return 0.0
    tiles = rounds.tiles_k
    once = np.sqrt(rounded / (KAPPA_SQ * coherent(tiles)))
    bound: Float64 = np.multiply(tiles * once, SAFETY * out.unit, dtype=np.float64)
    return bound


def _lse_terms(
    rounds: Roundings,
    block: ScoreBlock,
    maxima: RowMaxima,
    rows: RowSums,
    rounding: ProbsRounding | None,
    errors: ExponentErrors,
    worst: WorstExponent,
) -> Terms:
    alive = maxima.alive
    count = maxima.visible + (rows.sink_probs > 0) + rounds.tiles_k
    lse = maxima.lse
    final = U * np.abs(maxima.peak) * (1.0 + rounds.shift_error)
    final = final + 2.0 * U * rounds.arithmetic.log_ulp * np.abs(maxima.log_sum) + U * np.abs(lse) + FP32.half_ulp(lse)
    exponent = U * ((errors.mean_hard + errors.scale) * errors.inflation)[..., 0]
    if block.undetermined is not None:
        exponent = np.where(block.undetermined.any(axis=-1), np.inf, exponent)
    variance = {
        "exponent": U**2 * (errors.correlated * errors.inflation**2)[..., 0].astype(np.float64),
        "accumulation": KAPPA_SQ * U**2 * count / 3.0 * rows.repeated,
    }
    limit = worst.lse + (count + 2.0) * U * 1.01 + 2.0 * U * np.abs(maxima.log_sum) + final
    if rounding is not None and rounds.arithmetic.sum_rounded_probs:
        variance["probs rounding"] = U**2 * rounding.variance.sum(axis=-1).astype(np.float64)
        limit = limit + U * 1.01 * rounding.bound.sum(axis=-1)
    if block.uncheckable is not None:
        limit = np.where(block.uncheckable.any(axis=-1), np.inf, limit)
    hard = {"exponent": exponent.astype(np.float64), "final roundings": final}
    if not rounds.truncates:
        hard["swallowed"] = rows.swallowed.astype(np.float64)
    return Terms(hard=hard, variance=variance, worst=SAFETY * limit, unit=1.0, seen=somewhere_hidden(alive))
