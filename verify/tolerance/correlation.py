"""Correlation of rounding errors: equal numbers have equal errors, so their errors add, not their squares.

Both weights come from Cauchy-Schwarz on groups: (sum_{j in g} P_j x_j)^2 <= (sum_g P) (sum_g P x^2).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verify.dense import Float64
from verify.dtypes import FP32, FloatFormat
from verify.tolerance.roundings import KAPPA_SQ, Real

BIN_BITS = 3
"""Values in the same 2^-3 ulp have rounding errors that differ by an eighth of an ulp at most: they count as equal.
Below the smallest normal number the ulp is that of the subnormals; all values below half of it become 0 together."""
MATE_SHARE = 0.5
"""Mean square error of a bin mate in units of roundoff squared: more than KAPPA_SQ because all mates may sit at the
edge of the rounding interval at once (at most 1, 1/3 on average over places of the bin)."""


def bin_factor(values: Real, weights: Real, form: FloatFormat) -> Real:
    """Factor on the variance of rounding `values` to `form`: 1 + (MATE_SHARE / KAPPA_SQ) (bin_ratio - 1)."""
    ratio = bin_ratio(values, weights, form)
    factor: Real = 1 + (ratio - 1) * np.float32(MATE_SHARE / KAPPA_SQ)
    return factor


def bin_ratio(values: Real, weights: Real, form: FloatFormat) -> Real:
    """Weight of all values of a line in the same 1/8-ulp bin of `form`, over the own weight.

    Parameters
    ----------
    values : float32 array (heads, lines, n), non-negative
        Numbers that are rounded.
    weights : float32 array, same shape
        Their probabilities: a bin of total weight W counts as W / weight equal elements.

    Returns
    -------
    float32 array, same shape
        At least 1, and 1 where the weight is 0.
    """
    heads, lines, n = values.shape
    if not values.size:
        return np.ones(values.shape, dtype=np.float32)
    bins = _bins(values, form)
    # Bin above, column below: one sort of integers orders both, line by line.
    keys = (bins.astype(np.uint64) << np.uint64(32)) | np.arange(n, dtype=np.uint64)
    keys.sort(axis=-1)
    columns = (keys & np.uint64(0xFFFFFFFF)).astype(np.int64).reshape(heads * lines, n)
    order = (columns + (np.arange(heads * lines) * n)[:, None]).ravel()
    ordered_bins = (keys >> np.uint64(32)).reshape(heads * lines, n)
    opens = np.ones(ordered_bins.shape, dtype=bool)
    opens[:, 1:] = ordered_bins[:, 1:] != ordered_bins[:, :-1]
    if opens.all():
        return np.ones(values.shape, dtype=np.float32)
    totals = np.add.reduceat(weights.reshape(-1)[order], np.flatnonzero(opens))
    mates = np.empty(values.size, dtype=np.float32)
    mates[order] = totals[np.cumsum(opens) - 1]
    share = mates.reshape(values.shape) / np.maximum(weights, np.float32(1e-30)) - np.float32(1)
    ratio: Real = 1 + np.where(weights > 0, np.maximum(share, 0), np.float32(0))
    return ratio


def _bins(values: Real, form: FloatFormat, bits: int = BIN_BITS) -> NDArray[np.uint32]:
    """Number of the bin of 2^-bits ulp of each value >= 0."""
    if form.min_exponent > FP32.min_exponent:
        # On top of the smallest normal number the spacing is that of the subnormals; normal numbers make room.
        smallest = np.float32(2.0**form.min_exponent)
        lifted = np.where(values > np.float32(form.half_subnormal), values + smallest, np.float32(0))
        values = np.where(values < smallest, lifted, values + values)
    # fp32 has no bits to drop: only equal values share a bin.
    dropped = np.uint32(max(0, 24 - form.precision - bits))
    bins: NDArray[np.uint32] = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32) >> dropped
    return bins


def significand_ratio(values: Real, form: FloatFormat) -> Real:
    """Elements of a line (heads, lines, n) that share each one's significand: their relative roundings are equal."""
    significand = np.frexp(values)[0].astype(np.float32)
    return bin_ratio(np.abs(significand), np.ones(values.shape, dtype=np.float32), form)


def over_channels(factors: Float64, values: Float64, variance: Float64, form: FloatFormat) -> Float64:
    """Variance of sum_c factor_c error_c, the errors of channels whose values share a bin of `form` being one.

    Parameters
    ----------
    factors, values, variance : fp64 (heads, rows, channels)
        Errors have the sign of their value beside this variance.

    Returns
    -------
    fp64 (heads, rows)
        sum over the bins of max(sum factor^2, (sum factor sign)^2) * largest variance of the bin, where three or more
        channels share one; else sum factor^2 variance.
    """
    apart: Float64 = (factors**2 * variance).sum(axis=-1)
    # Half an ulp: neighbouring numbers beside those of the format err to the same side too.
    bins = _bins(np.abs(values).astype(np.float32), form, bits=1)
    ordered = np.sort(bins, axis=-1)
    repeated = ((ordered[..., 2:] == ordered[..., :-2]) & (ordered[..., 2:] > 0)).any(axis=-1)
    if not repeated.any():
        return apart
    order = np.argsort(bins[repeated], axis=-1)
    numbers, signed, largest = (
        np.take_along_axis(x[repeated], order, axis=-1) for x in (bins, factors * np.sign(values), variance)
    )
    opens = np.ones(numbers.shape, dtype=bool)
    opens[:, 1:] = numbers[:, 1:] != numbers[:, :-1]
    starts = np.flatnonzero(opens)
    together = np.add.reduceat(signed.ravel(), starts) ** 2
    squares = np.add.reduceat(signed.ravel() ** 2, starts)
    grouped = np.maximum(together, squares) * np.maximum.reduceat(largest.ravel(), starts)
    lines = starts // numbers.shape[-1]
    apart[repeated] = np.bincount(lines, weights=grouped, minlength=numbers.shape[0])
    return apart


def duplicate_rows(rows: NDArray[np.float64]) -> list[NDArray[Any] | None]:
    """For each head, the group number of every row of (heads, n, dim) among bitwise equal rows; None without equals."""
    heads, n, _ = rows.shape
    if n < 2:
        return [None] * heads
    hashed = _hash_rows(rows)
    ordered = np.sort(hashed, axis=-1)
    repeats = (ordered[:, 1:] == ordered[:, :-1]).any(axis=-1)
    return [
        np.unique(head, return_inverse=True)[1].ravel() if repeated else None
        for head, repeated in zip(hashed, repeats.tolist(), strict=True)
    ]


def group_ratio(weights: Real, groups: NDArray[Any]) -> Real:
    """Sum of the weights of a line's group over the weight itself, (heads, lines, n); 1 where the weight is 0.

    Parameters
    ----------
    weights : float32 array (heads, lines, n)
    groups : int array (n,)
        Group number of every column.
    """
    order = np.argsort(groups, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(groups[order]) != 0])
    sums = np.add.reduceat(weights[..., order], starts, axis=-1)[..., groups]
    return np.where(weights > 0, sums / np.maximum(weights, np.float32(1e-30)), np.float32(1))


def _hash_rows(rows: NDArray[np.float64]) -> NDArray[np.uint64]:
    """64-bit hash of each row; +0 and -0 are equal. A collision only makes the bound larger."""
    bits = np.ascontiguousarray(rows + 0.0).view(np.uint64)
    # fp64 images of short formats end in zeros: fold the high half down before multiplying. Integers wrap around.
    bits ^= bits >> np.uint64(32)
    bits *= _odd_factors(rows.shape[-1])
    mixed: NDArray[np.uint64] = bits.sum(axis=-1, dtype=np.uint64)
    return mixed


@cache
def _odd_factors(count: int) -> NDArray[np.uint64]:
    drawn = np.random.Generator(np.random.PCG64(0)).integers(0, 2**63, count, dtype=np.uint64)
    return drawn * np.uint64(2) + np.uint64(1)
