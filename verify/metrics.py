"""Error metrics of one array against another: pure functions, fp64, finite elements only. They report, never judge."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from verify.dtypes import FloatFormat

Float64 = NDArray[np.float64]
Bools = NDArray[np.bool_]


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


def compare_special_values(
    got: Float64, expected: Float64, overflow_allowed: Bools | None = None, unchecked: Bools | None = None
) -> SpecialValues:
    """Compare the NaN, +inf and -inf maps exactly.

    Parameters
    ----------
    got, expected
        Same shape, fp64.
    overflow_allowed
        Elements where an infinity of the sign of `expected` is as right as a finite value, since the bound reaches
        beyond the largest finite number of the output format.
    unchecked
        Elements where any value is within the contract (an intermediate result may overflow its declared format).
    """
    excused = np.zeros(got.shape, bool)
    if overflow_allowed is not None:
        excused = overflow_allowed & np.isinf(got) & (np.sign(got) == np.sign(expected))
    if unchecked is not None:
        excused |= unchecked
    differs = [(test(got) != test(expected)) & ~excused for test in (np.isnan, np.isposinf, np.isneginf)]
    counts = [int(np.count_nonzero(bad)) for bad in differs]
    return SpecialValues(
        nan_mismatch=counts[0],
        posinf_mismatch=counts[1],
        neginf_mismatch=counts[2],
        mismatch=differs[0] | differs[1] | differs[2],
        finite=np.isfinite(got) & np.isfinite(expected),
    )


def error_metrics(got: Float64, expected: Float64, form: FloatFormat) -> ErrorMetrics:
    """Metrics of finite 1-D arrays.

    Parameters
    ----------
    got, expected
        Finite, fp64, shape (n,).
    form
        Output format; ulp are counted at the expected value.
    """
    if got.size == 0:
        nan = math.nan
        return ErrorMetrics(max_abs=nan, max_rel=nan, rms=nan, rel_l2=nan, gain=nan, bias=nan, cosine=nan, max_ulp=nan)
    with np.errstate(over="ignore", under="ignore", invalid="ignore", divide="ignore"):
        error = got - expected
        size = np.abs(error)
        nonzero = expected != 0
        relative = size[nonzero] / np.abs(expected[nonzero])
        got_norm, expected_norm = _norm(got), _norm(expected)
        return ErrorMetrics(
            max_abs=float(size.max()),
            max_rel=float(relative.max()) if relative.size else _ratio(float(size.max()), 0.0),
            rms=_norm(error) / math.sqrt(error.size),
            rel_l2=_ratio(_norm(error), expected_norm),
            gain=_gain(got, expected, expected_norm),
            bias=float(error.mean()),
            cosine=_cosine(got, expected, got_norm, expected_norm),
            max_ulp=float((size / (2.0 * form.half_ulp(expected))).max()),
        )


def _norm(values: Float64) -> float:
    """Euclidean norm that neither overflows nor loses small values."""
    peak = float(np.abs(values).max(initial=0.0))
    if peak == 0.0 or not math.isfinite(peak):
        return peak
    return peak * float(np.sqrt(np.square(values / peak).sum()))


def _ratio(numerator: float, denominator: float) -> float:
    """numerator/denominator with 0/0 = 0 and x/0 = inf."""
    if denominator == 0.0:
        return 0.0 if numerator == 0.0 else math.inf
    return numerator / denominator


def _gain(got: Float64, expected: Float64, expected_norm: float) -> float:
    if expected_norm == 0.0:
        return 1.0 if not got.any() else math.inf
    unit = expected / expected_norm
    return float((got / expected_norm) @ unit)


def _cosine(got: Float64, expected: Float64, got_norm: float, expected_norm: float) -> float:
    """Cosine of the angle; two zero vectors agree (1), one zero vector does not (0)."""
    if got_norm == 0.0 or expected_norm == 0.0:
        return 1.0 if got_norm == expected_norm else 0.0
    return float((got / got_norm) @ (expected / expected_norm))
