"""Equal addends of a sum: while it stays in one binade they round to the same side, so their errors do not average out.

A partial sum is a multiple of its own ulp, so what an addition loses depends on the addend alone. A group of g equal
addends errs g times in full, not sqrt(g) times: the variance of n additions grows by sum g^2 / n. Products are equal
where weight and value both are, so the factor is the smaller of the two repetitions.
"""

from __future__ import annotations

import numpy as np

from verify.tolerance.operands import Operands
from verify.tolerance.roundings import Real

INDEPENDENT = 12
"""Up to so many additions ten standard deviations of independent errors allow the worst case already, n u of the sum:
10 u sqrt(0.36 (n + 3) / 3) >= n u."""
BINS = np.float32(2.0**26)
"""Weights count as equal within 2^-26 of their sum, a quarter of the smallest step of the sum's last binade."""


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
    largest = _largest_repetition(values.swapaxes(1, 2))
    if largest is None:
        return None
    factor: Real = np.minimum(repeated_weights(weights)[..., None], np.repeat(largest, ops.group, axis=0)[:, None])
    return factor


def repeated_over_rows(ops: Operands, weights: Real, values: Real) -> Real | None:
    """The same for sums over the rows of a group: values (heads, rows, dim), the factor (kv heads, keys, dim)."""
    stacked = ops.stack(weights).swapaxes(1, 2)
    if stacked.shape[-1] <= INDEPENDENT:
        return None
    largest = _largest_repetition(ops.stack(values).swapaxes(1, 2))
    if largest is None:
        return None
    factor: Real = np.minimum(repeated_weights(stacked)[..., None], largest[:, None])
    return factor


def repeated_weights(weights: Real) -> Real:
    """sum g^2 / n over the groups of equal weights of a line, (heads, lines); 1 where all differ.

    Weights below 2^-26 of their sum are left out: they are no group, they vanish (`swallowed`).
    """
    total = np.maximum(weights.sum(axis=-1, keepdims=True), np.float32(1e-30))
    bins = (weights * (BINS / total)).astype(np.int32)
    bins.sort(axis=-1)
    place = _place_in_run(bins)
    place[bins == 0] = 0
    counted = np.maximum((place > 0).sum(axis=-1), 1)
    # The odd numbers up to 2 g - 1 sum to g^2.
    squares = np.where(place > 0, 2 * place - 1, 0).sum(axis=-1)
    factor: Real = np.maximum(squares / counted, 1.0).astype(np.float32)
    return factor


def _largest_repetition(lines: Real) -> Real | None:
    """How often the most frequent number but 0 occurs in each line (..., n); None where no line has three equal."""
    ordered = np.sort(lines, axis=-1)
    if not ((ordered[..., 2:] == ordered[..., :-2]) & (ordered[..., 2:] != 0)).any():
        return None
    place = _place_in_run(ordered)
    place[ordered == 0] = 0
    largest: Real = np.maximum(place.max(axis=-1), 1).astype(np.float32)
    return largest


def _place_in_run(ordered: Real) -> Real:
    """1, 2, 3 ... within each run of equal neighbours of the last axis."""
    index = np.broadcast_to(np.arange(ordered.shape[-1]), ordered.shape)
    opens = np.ones(ordered.shape, dtype=bool)
    opens[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    starts = np.maximum.accumulate(np.where(opens, index, 0), axis=-1)
    place: Real = index - starts + 1
    return place
