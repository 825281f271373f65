"""One output of a candidate against its reference and bound. The Comparison is complete on success as well."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        return _compared(np.asarray(got).astype(np.float64), expected, dtype_ok=dtype_ok)


def _compared(values: Float64, expected: Expected, *, dtype_ok: bool) -> Comparison:
    """Comparison of an output of the right shape."""
    special = compare_special_values(values, expected.values, lambda: _excused(values, expected))
    ratio, ok = _bound_ratio(values, expected, special.finite)
    finite, whole = special.finite, bool(special.finite.all())
    seen, wanted, allowed, shares = (
        array.ravel() if whole else array[finite] for array in (values, expected.values, expected.bound, ratio)
    )
    wrong = ~ok | special.mismatch
    failed = bool(wrong.any())
    metrics = error_metrics(seen, wanted, expected.form)
    grid, axes = _error_map(wrong, ratio, expected) if failed else ((), ("", ""))
    return Comparison(
        tensor=expected.tensor,
        shape_ok=True,
        dtype_ok=dtype_ok,
        n_total=values.size,
        n_exceeding=int(np.count_nonzero(finite & ~ok)) if failed else 0,
        nan_mismatch=special.nan_mismatch,
        posinf_mismatch=special.posinf_mismatch,
        neginf_mismatch=special.neginf_mismatch,
        nan_count=0 if whole else int(np.isnan(values).sum()),
        inf_count=0 if whole else int(np.isinf(values).sum()),
        max_abs=metrics.max_abs,
        max_rel=metrics.max_rel,
        rms=metrics.rms,
        rel_l2=metrics.rel_l2,
        gain=metrics.gain,
        bias=metrics.bias,
        cosine=metrics.cosine,
        max_ulp=metrics.max_ulp,
        max_bound_ratio=float(shares.max(initial=0.0)),
        saturated=_saturated(wanted, allowed),
        fixed_limits_ok=within_fixed_limits(values, expected),
        worst=_worst(values, expected, np.where(wrong & ~finite, np.inf, ratio) if failed else ratio),
        pattern=_pattern(wrong, values, expected) if failed else "",
        error_map=grid,
        map_axes=axes,
    )


def within_fixed_limits(got: Float64, expected: Expected) -> bool:
    """Whether the customary fixed limits accept the output: NaN never passes, equal infinities do."""
    absolute, relative = FIXED_LIMITS.get(expected.form.name, FIXED_LIMITS["fp32"])
    if expected.form.name == "fp32" and expected.tensor.startswith("d"):
        absolute = FIXED_GRADIENT_LIMIT
    limit = absolute + relative * np.abs(expected.values) if relative else absolute
    close = np.abs(got - expected.values) <= limit
    return bool(close.all()) or bool((close | (got == expected.values)).all())


def _excused(got: Float64, expected: Expected) -> Bools:
    """Elements that need not agree: not checkable, or an infinity of the right sign where the bound reaches it."""
    overflowed = np.isinf(got) & (np.sign(got) == np.sign(expected.values))
    reached = overflowed & expected.form.may_overflow(expected.values, expected.bound)
    excused: Bools = np.isposinf(expected.bound) | reached
    return excused


def _bound_ratio(got: Float64, expected: Expected, finite: Bools) -> tuple[Float64, Bools]:
    """error/bound (0/0 = 0, x/0 = inf, NaN bound = inf) and whether error <= bound, False only for finite elements."""
    error = np.abs(got - expected.values)
    error[~finite] = 0.0
    ok = (error <= expected.bound) | ~finite
    if (expected.bound > 0).all():
        ratio = error / expected.bound
    else:
        ratio = np.divide(error, expected.bound, out=np.zeros(error.shape), where=error != 0.0)
    if np.isnan(ratio.max(initial=0.0)):
        ratio[np.isnan(ratio)] = np.inf
    return ratio, ok


def _saturated(values: Float64, bound: Float64) -> float:
    """Share of finite elements whose bound is at least the spread of the reference: nothing could fail there."""
    if not values.size:
        return 0.0
    high, low = float(values.max()), float(values.min())
    if high == low:
        return 0.0
    return int(np.count_nonzero(bound >= max(high - low, high, -low))) / values.size


def _worst(got: Float64, expected: Expected, ratio: Float64) -> tuple[WorstElement, ...]:
    if ratio.size == 0:
        return ()
    flat = ratio.ravel()
    count = min(N_WORST, flat.size)
    chosen = np.argpartition(flat, flat.size - count)[flat.size - count :]
    chosen = chosen[np.argsort(-flat[chosen], kind="stable")]
    axes = np.unravel_index(chosen, ratio.shape)
    places = zip(*(axis.tolist() for axis in axes), strict=True)
    tiles = zip(*_tiles(axes, patterns.axis_names(expected.tensor, ratio.ndim), expected.tile), strict=True)
    columns = (values.ravel()[chosen].tolist() for values in (got, expected.values, expected.bound, ratio))
    return tuple(
        WorstElement(index=index, tile=tile, got=value, expected=wanted, bound=bound, ratio=share)
        for index, tile, value, wanted, bound, share in zip(places, tiles, *columns, strict=True)
    )


def _tiles(axes: Sequence[NDArray[np.intp]], names: tuple[str, ...], tile: tuple[int, int]) -> Iterator[list[int]]:
    """Number of the row tile and of the column tile of each element; 0 where the axis or the tile is unknown."""
    for name, size in zip(("row", "key"), tile, strict=True):
        known = bool(size) and name in names
        yield (axes[names.index(name)] // size).tolist() if known else [0] * len(axes[0])


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
