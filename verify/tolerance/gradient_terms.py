"""What the terms of every gradient share: finishing, roundings of stored partial sums, underflow, overflow."""

from __future__ import annotations

import numpy as np

from verify.dense import Float64
from verify.dtypes import FloatFormat
from verify.tolerance.correlation import bin_factor
from verify.tolerance.operands import Operands
from verify.tolerance.roundings import FLUSH, KAPPA_SQ, SAFETY, TINY_WEIGHT, Real
from verify.tolerance.swallowed import coherent
from verify.tolerance.terms import Terms


def finish(
    hard: dict[str, Float64],
    variance: dict[str, Float64],
    limit: Float64,
    floor: Float64,
    *,
    unit: float,
    seen: Real | None,
    overflow: Real | None,
) -> Terms:
    """Scale the terms to real units; exactly 0 where nothing contributes, inf where an intermediate may overflow."""
    hard["underflow"] = floor
    limit = limit * SAFETY + floor
    if overflow is not None:
        limit = np.where(overflow, np.inf, limit)
    limit = np.where(np.isnan(limit), np.inf, limit)
    return Terms(hard=hard, variance=variance, worst=limit, unit=unit, seen=seen)


def repeated_variance(size: Float64, form: FloatFormat, unit: float, times: int) -> Float64:
    """Variance of rounding a partial sum of at most `size` units to `form` so many times, underflow included."""
    return coherent(times) * (KAPPA_SQ * (form.unit_roundoff * size) ** 2 + (form.half_subnormal / unit) ** 2 / 3.0)


def repeated_worst(total: Real, form: FloatFormat, unit: float) -> Float64:
    """Largest error of one such rounding, in units."""
    worst: Float64 = form.unit_roundoff * total.astype(np.float64) + form.half_subnormal / unit
    return worst


def column_bin_factor(ops: Operands, weights: Real, form: FloatFormat) -> Real:
    """`bin_factor` of weights (heads, rows, keys) along the rows that meet one key, over the heads of a group."""
    by_key = np.ascontiguousarray(ops.stack(weights).swapaxes(1, 2))
    return bin_factor(by_key, by_key, form).swapaxes(1, 2).reshape(weights.shape)


def underflow_floor(count: Float64, unit: float, scale: float, largest: float = 1.0) -> Float64:
    """Absolute error of terms too small for the fp32 of the kernel (flushed) or of this evaluation (left out).

    `largest` is what a weight that is left out may be multiplied with, beside a factor of at most 1.
    """
    return count * (TINY_WEIGHT * max(1.0, largest) + FLUSH * (1.0 + scale / unit))


def also(first: Real | None, second: Real) -> Real:
    """Union of two masks, the first of which may be absent."""
    return second if first is None else first | second


def as_rows(values: Float64) -> Real:
    """(heads, rows) as float32 (heads, rows, 1)."""
    return values[..., None].astype(np.float32)
