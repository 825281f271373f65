"""Statistics over all elements of one output that see what no single element shows: truncation and lost precision.

Pure functions of error, reference and bound. Only for low-precision outputs of generic values (`applicable`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from verify.case import Recipe
from verify.contract import Arithmetic
from verify.dense import Float64
from verify.problem import AttentionProblem
from verify.tolerance.bound import Bound
from verify.tolerance.roundings import is_short
from verify.tolerance.terms import PREDICTED, PRESCALED

GAIN_LIMIT = 7.5
"""A self-normalised sum of independent symmetric terms obeys P(|t| > x) <= 2 exp(-x^2/2): 1.2e-12 at 7.5, whatever the
variances (de la Pena, Lai, Shao, "Self-Normalized Processes", 2009, theorem 2.14)."""
RMS_LIMIT = 1.25
"""The predicted rms is that of log-uniform significands."""
MISFIT = 1.1
"""The significands of generic values move the rms by up to 10 % (measured, docs/tolerances.md)."""
RANDOM = ("underflow", PREDICTED, PRESCALED)
"""Hard terms that have either sign in generic values: the variance, or its own share of it, holds them."""
MIN_ELEMENTS = 1024
GENERIC_RECIPES = ("normal", "outliers")
"""Recipes whose rows are independent and whose rounding errors are symmetric."""
GENERIC_LOGITS = 10.0
"""Largest logit of the `logits` recipe that still spreads the weight over many keys."""


def applicable(problem: AttentionProblem, recipe: Recipe, arithmetic: Arithmetic) -> bool:
    """Whether the statistics mean anything for this case.

    Structured values (equal rows, grids, tiny logits) have equal rounding errors, so rows are not independent; in fp32
    the errors that the contract permits to be systematic (scale constant, exponential) dominate.
    """
    formats = (arithmetic.out_dtype or problem.dtype, arithmetic.grad_dtype or problem.dtype)
    low = all(map(is_short, formats))
    spread = recipe.name == "logits" and float(recipe.get("max", np.inf)) <= GENERIC_LOGITS
    sizes = (
        problem.total_q * problem.nheads * min(problem.head_dim, problem.head_dim_v),
        problem.total_k * problem.nheads_kv * min(problem.head_dim, problem.head_dim_v),
    )
    return low and (recipe.name in GENERIC_RECIPES or spread) and min(sizes) >= MIN_ELEMENTS


def rows_are_independent(problem: AttentionProblem, arithmetic: Arithmetic, tensor: str) -> bool:
    """Whether the rows of an output err apart from each other, as the scores of both statistics take it.

    An error of a query's normaliser reaches the rows of all keys in dk and dv. With fp32 scores it is far below the
    roundings of a single weight; with scores in a short format, or a row sum of rounded weights, it is not. Few queries
    say too little as well.
    """
    if tensor in ("out", "dq"):
        return True
    short = is_short(arithmetic.scores_dtype) or arithmetic.scale_on != "scores"
    short = short or (arithmetic.sum_rounded_probs and is_short(arithmetic.probs_dtype))
    return not short and problem.total_q * problem.nheads >= GAIN_LIMIT**2


def beyond_rounding(got: NDArray[Any], reference: Float64) -> Float64:
    """got - reference rounded to its format: what is left of the error once the output rounding is taken for known.

    Where one key decides a row, out is that row of V but for less than half an ulp: the rounding to V then follows the
    sign of V. It is no bias of the kernel, so the gain must not see it. 0 where the rounded reference is infinite.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        left = got.astype(np.float64) - reference.astype(got.dtype).astype(np.float64)
    return np.where(np.isfinite(left), left, 0.0)


def weights(bound: Bound) -> Float64:
    """1 / (variance of the error that the bound predicts), 0 where the output is exact or not checkable.

    The output rounding is uniform in its half ulp; what the contract permits to be systematic counts in full.
    """
    systematic = _systematic(bound)
    shared = bound.hard.get(PRESCALED, 0.0) / bound.confidence
    variance = bound.sigma**2 + bound.output_half_ulp**2 / 3.0 + systematic**2 + shared**2
    judged = np.isfinite(bound.total) & (variance > 0)
    return np.where(judged, 1.0 / np.where(judged, variance, 1.0), 0.0)


def gain_score(error: Float64, reference: Float64, bound: Bound) -> float:
    """Self-normalised correlation of the error with the reference: truncation, a biased exponential, a wrong scale.

    Parameters
    ----------
    error, reference : fp64, logical shape (..., dim)
        `beyond_rounding` of the result, and the reference; both finite.
    bound : Bound
        The element bounds of this output.

    Returns
    -------
    float
        t = (sum_i x_i -+ permitted) / sqrt(sum_i x_i^2), x_i = sum_c w_ic error_ic reference_ic over a row; 0 while the
        sum stays within what the declared systematic terms permit. |t| > GAIN_LIMIT is a finding.
    """
    weight = weights(bound)
    rows = (weight * error * reference).sum(axis=-1).ravel()
    norm = float(np.sqrt((rows**2).sum()))
    permitted = float((weight * _systematic(bound) * np.abs(reference)).sum())
    total = float(rows.sum())
    return float(np.sign(total) * max(0.0, abs(total) - permitted) / norm) if norm > 0 else 0.0


def rms_ratio(error: Float64, bound: Bound) -> float:
    """Root mean square of error over its predicted deviation: precision lost anywhere. > RMS_LIMIT is a finding.

    There is no lower limit: a kernel may be more accurate than it declares.
    """
    weight = weights(bound)
    judged = np.count_nonzero(weight)
    return float(np.sqrt((weight * error**2).sum() / judged)) if judged else 0.0


def rms_score(error: Float64, bound: Bound) -> float:
    """Whether the rows agree that the rms is beyond the predicted: > GAIN_LIMIT is a finding where `rms_ratio` is too.

    Elements of a row may share one error (a rounded weight moves the whole row), so a row counts once, however long.

    Returns
    -------
    float
        t = sum_i x_i / sqrt(sum_i x_i^2), x_i = sum_c w_ic (error_ic^2) - MISFIT^2 n_i over a row. At most the root of
        the number of rows: fewer than 57 cannot exceed the limit.

    Notes
    -----
    The mean of x_i is negative for an honest kernel. exp(y - y^2/2) <= 1 + y for y >= 0, so a skew to the right, which
    squares have, only lowers the tail of such a sum below exp(-t^2/2).
    """
    weight = weights(bound)
    judged = np.count_nonzero(weight, axis=-1)
    rows = ((weight * error**2).sum(axis=-1) - MISFIT**2 * judged).ravel()
    norm = float(np.sqrt((rows**2).sum()))
    return float(rows.sum()) / norm if norm > 0 else 0.0


def key_score(error: Float64, probs: Float64, values: Float64, out: Float64, bound: Bound) -> Float64:
    """Which key a wrong out points at: a diagnostic that names a column, never a verdict.

    Parameters
    ----------
    error, out : fp64 (heads, rows, dim)
        Error and reference of one sequence, head-major; `bound` head-major as well.
    probs : fp64 (heads, rows, keys)
        Reference probabilities.
    values : fp64 (heads, keys, dim)

    Returns
    -------
    fp64 (keys,)
        <error, a_j> / |a_j| in the metric of `weights`, summed over heads and rows, with a_j = P_j (V_j - O) what a
        relative error of weight j does to out. Unit variance for an honest kernel; the largest modulus names the key,
        because <error, a_j> / |a_j| is largest where the error is parallel to a_j.
    """
    weight = weights(bound)
    across = values.swapaxes(1, 2)
    product = probs * ((weight * error) @ across - (weight * error * out).sum(axis=-1, keepdims=True))
    length = (
        weight @ (across * across) - 2.0 * (weight * out) @ across + (weight * out * out).sum(axis=-1, keepdims=True)
    )
    norm = np.sqrt(np.maximum(probs**2 * length, 0.0).sum(axis=(0, 1)))
    scores: Float64 = np.where(norm > 0, product.sum(axis=(0, 1)) / np.where(norm > 0, norm, 1.0), 0.0)
    return scores


def _systematic(bound: Bound) -> Float64:
    total = np.zeros(bound.total.shape)
    for name, value in bound.hard.items():
        if name not in RANDOM:
            total += value
    return total
