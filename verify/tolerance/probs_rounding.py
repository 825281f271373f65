"""Rounding of a stored P or dS: its bound, its variance, and how equal values correlate it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verify.dtypes import FloatFormat, float_format
from verify.tolerance.correlation import bin_factor
from verify.tolerance.roundings import KAPPA_SQ, Real, Roundings, U
from verify.tolerance.scores import RowMaxima, ScoreBlock


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProbsRounding:
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


def probs_rounding(rounds: Roundings, block: ScoreBlock, maxima: RowMaxima, confidence: float) -> ProbsRounding | None:
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
    return ProbsRounding(bound=bound, variance=variance)
