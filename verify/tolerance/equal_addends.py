"""Equal addends of a sum: while it stays in one binade they round to the same side, so their errors do not average out.

A partial sum is a multiple of its own ulp, so what an addition loses depends on the addend alone. A group of g equal
addends errs g times in full, not sqrt(g) times: the variance of n additions grows by sum g^2 / n. Products are equal
where weight and value both are, so the factor is the smaller of the two repetitions. What differs by less than a
quarter step of the sum counts as equal: weights within 2^-26 of their sum, values within that over the share of the
weight that repeats most.
"""

from __future__ import annotations

import numpy as np

from verify.dense import Float64
from verify.tolerance.operands import Operands
from verify.tolerance.repetition import INDEPENDENT, group_sizes, mean_group, place_in_run, places_of_equals
from verify.tolerance.roundings import Real

BINS = np.float32(2.0**26)
"""Weights count as equal within 2^-26 of their sum, a quarter of the smallest step of the sum's last binade."""
HARDLY = 1.05
"""Weights that repeat less than this change nothing."""


def repeated_over_keys(ops: Operands, weights: Real, values: Real) -> Real | None:
    """Factor on the variance of sums over keys of weights * values; None where it is 1.

    Parameters
    ----------
    weights : float32 array (heads, rows, keys), non-negative
    values : float32 array (kv heads, keys, dim)

    Returns
    -------
    float32 array (heads, rows, dim)
        At least 1.
    """
    if weights.shape[-1] <= INDEPENDENT:
        return None
    repeated, share = _repetition(weights)
    by_kv_head = (x.reshape(values.shape[0], -1) for x in (repeated, share))
    largest = _largest_repetition(values.swapaxes(1, 2), *by_kv_head)
    if largest is None:
        return None
    factor: Real = np.minimum(repeated[..., None], np.repeat(largest, ops.group, axis=0)[:, None])
    return factor


def repeated_over_rows(ops: Operands, weights: Real, values: Real) -> Real | None:
    """The same for sums over the rows of a group: values (heads, rows, dim), the factor (kv heads, keys, dim)."""
    stacked = ops.stack(weights).swapaxes(1, 2)
    if stacked.shape[-1] <= INDEPENDENT:
        return None
    repeated, share = _repetition(stacked)
    largest = _largest_repetition(ops.stack(values).swapaxes(1, 2), repeated, share)
    if largest is None:
        return None
    factor: Real = np.minimum(repeated[..., None], largest[:, None])
    return factor


def repeated_weights(weights: Real) -> Real:
    """sum g^2 / n over the groups of equal weights of a line, (heads, lines); 1 where all differ.

    Weights below 2^-26 of their sum are left out: they are no group, they vanish (`swallowed`).
    """
    return _repetition(weights)[0]


def _repetition(weights: Real) -> tuple[Real, Real]:
    """`repeated_weights`, and the share of the sum that one weight of the largest group has, both (heads, lines)."""
    total = np.maximum(weights.sum(axis=-1, keepdims=True), np.float32(1e-30))
    bins = (weights * (BINS / total)).astype(np.int32)
    bins.sort(axis=-1)
    place = place_in_run(bins)
    place[bins == 0] = 0
    most = np.take_along_axis(bins, place.argmax(axis=-1)[..., None], axis=-1)[..., 0]
    return mean_group(place), np.maximum(most, 1) / BINS


def repeated_over_channels(ops: Operands, rows: slice, keys: slice, steps: int, *, scores: bool) -> Real | None:
    """The same for dot products over channels, of q and k (`scores`) or of dout and v, in so many steps.

    Returns
    -------
    float32 array (heads, rows, keys)
        At least 1 and at most `steps`.
    """
    left, right = (ops.query_repeats, ops.key_repeats) if scores else (ops.dout_repeats, ops.value_repeats)
    if left is None or right is None:
        return None
    factor: Real = np.minimum(left[:, rows, None], np.repeat(right[:, None, keys], ops.group, axis=0))
    return np.minimum(factor, np.float32(steps))


def repeated_in_delta(ops: Operands, rows: slice, out: Float64) -> Real | float:
    """The same for delta = sum dout * out over channels, (heads, rows)."""
    if ops.dout_repeats is None:
        return 1.0
    repeats = group_sizes(out)
    return 1.0 if repeats is None else np.minimum(ops.dout_repeats[:, rows], repeats)


def _largest_repetition(lines: Real, repeated: Real, share: Real) -> Real | None:
    """How often the most frequent number but 0 occurs in each line (heads, channels, n); None where none occurs thrice.

    Parameters
    ----------
    repeated, share : float32 arrays (heads, lines)
        Of the weights (`_repetition`) that multiply the numbers.
    """
    counted = repeated > HARDLY
    if not counted.any():
        return None
    seen = np.where(counted, share, np.float32(1)).min(axis=-1, initial=1.0)[:, None, None]
    widest = np.maximum(np.abs(lines).max(axis=-1, keepdims=True, initial=0.0), np.float32(1e-30))
    place = places_of_equals(np.rint(lines * (BINS * seen / widest)))
    if place is None:
        return None
    largest: Real = np.maximum(place.max(axis=-1), 1).astype(np.float32)
    return largest
