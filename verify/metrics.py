"""Error metrics of one array against another: pure functions, fp64, finite elements only. They report, never judge."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from verify.dtypes import FloatFormat

Float64 = NDArray[np.float64]
Bools = NDArray[np.bool_]
SQUARES = (1e-250, 1e250)
"""Sums of squares between these have lost nothing to underflow that counts, and have not overflowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialValues:
    """Elements whose NaN or infinity differs from the reference's, counted by kind."""

    nan_mismatch: int
    posinf_mismatch: int
    neginf_mismatch: int
    mismatch: Bools
    """Elements counted by one of the three."""
    finite: Bools
    """Elements finite in both: the only ones whose error is a number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorMetrics:
    """Metrics over the finite elements; NaN where there is nothing to compare."""

    max_abs: float
    max_rel: float
    rms: float
    rel_l2: float
    gain: float
    bias: float
    cosine: float
    max_ulp: float


def compare_special_values(got: Float64, expected: Float64, excused: Callable[[], Bools]) -> SpecialValues:
    """Compare the NaN, +inf and -inf maps exactly.

    Parameters
    ----------
    got, expected
        Same shape, fp64.
    excused
        Gives the elements that count as equal whatever their kind; asked only where something is not finite.
    """
    finite = np.isfinite(got) & np.isfinite(expected)
    if finite.all():
        none = np.zeros(got.shape, bool)
        return SpecialValues(nan_mismatch=0, posinf_mismatch=0, neginf_mismatch=0, mismatch=none, finite=finite)
    judged = ~excused()
    differs = [(test(got) != test(expected)) & judged for test in (np.isnan, np.isposinf, np.isneginf)]
    counts = [int(np.count_nonzero(bad)) for bad in differs]
    return SpecialValues(
        nan_mismatch=counts[0],
        posinf_mismatch=counts[1],
        neginf_mismatch=counts[2],
        mismatch=differs[0] | differs[1] | differs[2],
        finite=finite,
    )


def error_metrics(got: Float64, expected: Float64, form: FloatFormat) -> ErrorMetrics:
    """Metrics of finite 1-D arrays.

    Parameters
    ----------
    got, expected
        Finite, fp64, shape (n,).
    form
        Output format; ulp are counted at the expected value where that is not zero.
    """
    if got.size == 0:
        nan = math.nan
        return ErrorMetrics(max_abs=nan, max_rel=nan, rms=nan, rel_l2=nan, gain=nan, bias=nan, cosine=nan, max_ulp=nan)
    with np.errstate(over="ignore", under="ignore", invalid="ignore", divide="ignore"):
        error = got - expected
        size, magnitude = np.abs(error), np.abs(expected)
        max_rel, max_ulp = _largest_relative(size, magnitude, form)
        got_norm, expected_norm, error_norm = _norm(got), _norm(expected), _norm(error)
        return ErrorMetrics(
            max_abs=float(size.max()),
            max_rel=max_rel,
            rms=error_norm / math.sqrt(error.size),
            rel_l2=_ratio(error_norm, expected_norm),
            gain=_gain(got, expected, expected_norm),
            bias=float(error.mean()),
            cosine=_cosine(got, expected, got_norm, expected_norm),
            max_ulp=max_ulp,
        )


def _largest_relative(size: Float64, magnitude: Float64, form: FloatFormat) -> tuple[float, float]:
    """Largest error over |expected| and in ulp; nothing is relative to a zero, unless there is nothing else."""
    nonzero = magnitude > 0
    if not nonzero.all():
        if not nonzero.any():
            alone = _ratio(float(size.max()), 0.0)
            return alone, alone
        size, magnitude = size[nonzero], magnitude[nonzero]
    return float((size / magnitude).max()), float((size / form.half_ulp(magnitude)).max()) / 2.0


def _norm(values: Float64) -> float:
    """Euclidean norm that neither overflows nor loses small values."""
    square = float(values @ values)
    if SQUARES[0] < square < SQUARES[1]:
        return math.sqrt(square)
    peak = float(np.abs(values).max(initial=0.0))
    if peak == 0.0 or not math.isfinite(peak):
        return peak
    return peak * float(np.sqrt(np.square(values / peak).sum()))


def _inner(left: Float64, right: Float64, left_norm: float, right_norm: float) -> float:
    """Inner product of two vectors over both norms."""
    scale = left_norm * right_norm
    if SQUARES[0] < scale < SQUARES[1]:
        return float(left @ right) / scale
    return float((left / left_norm) @ (right / right_norm))


def _ratio(numerator: float, denominator: float) -> float:
    """numerator/denominator with 0/0 = 0 and x/0 = inf."""
    if denominator == 0.0:
        return 0.0 if numerator == 0.0 else math.inf
    return numerator / denominator


def _gain(got: Float64, expected: Float64, expected_norm: float) -> float:
    """Least-squares factor of `got` on `expected`."""
    if expected_norm == 0.0:
        return 1.0 if not got.any() else math.inf
    return _inner(got, expected, expected_norm, expected_norm)


def _cosine(got: Float64, expected: Float64, got_norm: float, expected_norm: float) -> float:
    """Cosine of the angle; two zero vectors agree (1), one zero vector does not (0)."""
    if got_norm == 0.0 or expected_norm == 0.0:
        return 1.0 if got_norm == expected_norm else 0.0
    return _inner(got, expected, got_norm, expected_norm)
