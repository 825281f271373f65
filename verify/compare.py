"""One output of a candidate against its reference and bound. The Comparison is complete on success as well."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verify import patterns
from verify.dtypes import FloatFormat
from verify.metrics import Bools, Float64, compare_special_values, error_metrics
from verify.verdict import Comparison, WorstElement

N_WORST = 10

FIXED_LIMITS = {
    "fp32": (1e-5, 0.0),
    "fp16": (1e-3, 1e-2),
    "bf16": (1e-2, 2e-2),
}
"""The customary fixed limits (absolute, relative), reported beside the bound: |error| <= abs + rel*|expected|."""
FIXED_GRADIENT_LIMIT = 1e-4
"""The customary absolute limit of fp32 gradients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What one output must be: reference, per-element bound, format and the tile sizes for coordinates."""

    tensor: str
    values: Float64
    bound: Float64
    """Largest accepted |got - expected|, same shape; inf = not checkable, any value is within the contract."""
    form: FloatFormat
    tile: tuple[int, int] = (0, 0)
    """Rows and columns of the declared tile; 0 = unknown."""


def compare(got: NDArray[Any], expected: Expected) -> Comparison:
    """Compare one output.

    Parameters
    ----------
    got
        The candidate's array, any dtype and strides.
    expected
        Reference, bound and format.

    Returns
    -------
    Comparison
        `accepted` is True only if shape and dtype match, the NaN, +inf and -inf maps are equal and every finite element
        satisfies error <= bound.
    """
    dtype_ok = got.dtype == expected.form.numpy_dtype
    if got.shape != expected.values.shape:
        return _empty(expected, dtype_ok=dtype_ok)
    values = np.asarray(got).astype(np.float64)
    unchecked = np.isposinf(expected.bound)
    special = compare_special_values(values, expected.values, _overflow_allowed(expected), unchecked)
    ratio, ok = _bound_ratio(values, expected, special.finite)
    wrong = ~ok | special.mismatch
    finite = special.finite
    metrics = error_metrics(values[finite], expected.values[finite], expected.form)
    failed = bool(wrong.any())
    grid, axes = _error_map(wrong, ratio, expected) if failed else ((), ("", ""))
    return Comparison(
        tensor=expected.tensor,
        shape_ok=True,
        dtype_ok=dtype_ok,
        n_total=values.size,
        n_exceeding=int(np.count_nonzero(finite & ~ok)),
        nan_mismatch=special.nan_mismatch,
        posinf_mismatch=special.posinf_mismatch,
        neginf_mismatch=special.neginf_mismatch,
        nan_count=int(np.isnan(values).sum()),
        inf_count=int(np.isinf(values).sum()),
        max_abs=metrics.max_abs,
        max_rel=metrics.max_rel,
        rms=metrics.rms,
        rel_l2=metrics.rel_l2,
        gain=metrics.gain,
        bias=metrics.bias,
        cosine=metrics.cosine,
        max_ulp=metrics.max_ulp,
        max_bound_ratio=float(ratio[finite].max(initial=0.0)),
        saturated=_saturated(expected, finite),
        fixed_limits_ok=within_fixed_limits(values, expected),
        worst=_worst(values, expected, np.where(wrong & ~finite, np.inf, ratio)),
        pattern=_pattern(wrong, values, expected) if failed else "",
        error_map=grid,
        map_axes=axes,
    )


def within_fixed_limits(got: Float64, expected: Expected) -> bool:
    """Whether the customary fixed limits accept the output: NaN never passes, equal infinities do."""
    absolute, relative = FIXED_LIMITS.get(expected.form.name, FIXED_LIMITS["fp32"])
    if expected.form.name == "fp32" and expected.tensor.startswith("d"):
        absolute = FIXED_GRADIENT_LIMIT
    with np.errstate(invalid="ignore"):
        close = np.abs(got - expected.values) <= absolute + relative * np.abs(expected.values)
    return bool((close | (got == expected.values)).all())


def _overflow_allowed(expected: Expected) -> Bools:
    """Elements whose bound reaches the rounding threshold to infinity of the output format."""
    top = expected.form.max_finite
    threshold = top + float(expected.form.half_ulp(np.asarray(top)))
    with np.errstate(invalid="ignore", over="ignore"):
        reach: Bools = np.isfinite(expected.values) & (np.abs(expected.values) + expected.bound >= threshold)
    return reach


def _bound_ratio(got: Float64, expected: Expected, finite: Bools) -> tuple[Float64, Bools]:
    """error/bound (0/0 = 0, x/0 = inf, NaN bound = inf) and whether error <= bound, False only for finite elements."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        error = np.where(finite, np.abs(got - expected.values), 0.0)
        ok = (error <= expected.bound) | ~finite
        ratio = np.where(error == 0.0, 0.0, error / expected.bound)
    return np.where(np.isnan(ratio), np.inf, ratio), ok


def _saturated(expected: Expected, finite: Bools) -> float:
    """Share of finite elements whose bound is at least the spread of the reference: nothing could fail there."""
    if not finite.any():
        return 0.0
    values = expected.values[finite]
    spread = float(values.max() - values.min())
    return float(np.mean(expected.bound[finite] >= max(spread, float(np.abs(values).max())))) if spread else 0.0


def _worst(got: Float64, expected: Expected, ratio: Float64) -> tuple[WorstElement, ...]:
    if ratio.size == 0:
        return ()
    flat = ratio.ravel()
    count = min(N_WORST, flat.size)
    chosen = np.argpartition(flat, flat.size - count)[flat.size - count :]
    chosen = chosen[np.argsort(-flat[chosen], kind="stable")]
    axes = patterns.axis_names(expected.tensor, ratio.ndim)
    places = zip(*(axis.tolist() for axis in np.unravel_index(chosen, ratio.shape)), strict=True)
    columns = (values.ravel()[chosen].tolist() for values in (got, expected.values, expected.bound, ratio))
    return tuple(
        WorstElement(
            index=index, tile=_tile(index, axes, expected.tile), got=value, expected=wanted, bound=bound, ratio=share
        )
        for index, value, wanted, bound, share in zip(places, *columns, strict=True)
    )


def _tile(index: tuple[int, ...], axes: tuple[str, ...], tile: tuple[int, int]) -> tuple[int, int]:
    row = index[axes.index("row")] if "row" in axes else 0
    column = index[axes.index("key")] if "key" in axes else 0
    return (row // tile[0] if tile[0] else 0, column // tile[1] if tile[1] else 0)


def _error_map(
    wrong: Bools, ratio: Float64, expected: Expected
) -> tuple[tuple[tuple[float, ...], ...], tuple[str, str]]:
    return patterns.error_map(np.where(wrong & ~np.isfinite(ratio), np.inf, ratio), tensor=expected.tensor)


def _pattern(wrong: Bools, got: Float64, expected: Expected) -> str:
    return patterns.describe(wrong, got, expected.values, tensor=expected.tensor, tile_rows=expected.tile[0])


def _empty(expected: Expected, *, dtype_ok: bool) -> Comparison:
    """Comparison of an output whose shape is wrong: nothing was compared."""
    nan = float("nan")
    return Comparison(
        tensor=expected.tensor,
        shape_ok=False,
        dtype_ok=dtype_ok,
        n_total=0,
        n_exceeding=0,
        nan_mismatch=0,
        posinf_mismatch=0,
        neginf_mismatch=0,
        nan_count=0,
        inf_count=0,
        max_abs=nan,
        max_rel=nan,
        rms=nan,
        rel_l2=nan,
        gain=nan,
        bias=nan,
        cosine=nan,
        max_ulp=nan,
        max_bound_ratio=nan,
        saturated=0.0,
        fixed_limits_ok=False,
        pattern="wrong shape",
    )
