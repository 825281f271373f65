"""How often numbers repeat within a line: facts about arrays, of which `equal_addends` makes factors on variances."""

from __future__ import annotations

import numpy as np

from verify.dense import Float64
from verify.tolerance.roundings import Real

INDEPENDENT = 12
"""Up to so many additions ten standard deviations of independent errors allow the worst case already, n u of the sum:
10 u sqrt(0.36 (n + 3) / 3) >= n u."""


def group_sizes(lines: Real | Float64) -> Real | None:
    """sum g^2 / n over the groups of equal numbers but 0 of each line (..., n); None where no line has three equal.

    The addends are products of about 1/n of a sum, which moves in steps of 2^-23 of itself: what differs by a quarter
    of that counts as equal.
    """
    largest = np.maximum(np.abs(lines).max(axis=-1, keepdims=True, initial=0.0), np.float32(1e-30))
    place = places_of_equals(np.rint(lines * (np.float32(2.0**25 / max(1, lines.shape[-1])) / largest)))
    return None if place is None else mean_group(place)


def places_of_equals(lines: Real) -> Real | None:
    """`place_in_run` of the sorted lines, 0 for zeros; None where no line has three equal numbers but 0."""
    ordered = np.sort(lines, axis=-1)
    if not ((ordered[..., 2:] == ordered[..., :-2]) & (ordered[..., 2:] != 0)).any():
        return None
    place = place_in_run(ordered)
    place[ordered == 0] = 0
    return place


def mean_group(place: Real) -> Real:
    """sum g^2 / n of each line from the places of its members in their groups; 1 where all differ."""
    counted = np.maximum((place > 0).sum(axis=-1), 1)
    # The odd numbers up to 2 g - 1 sum to g^2.
    squares = np.where(place > 0, 2 * place - 1, 0).sum(axis=-1)
    factor: Real = np.maximum(squares / counted, 1.0).astype(np.float32)
    return factor


def place_in_run(ordered: Real) -> Real:
    """1, 2, 3 ... within each run of equal neighbours of the last axis."""
    index = np.broadcast_to(np.arange(ordered.shape[-1]), ordered.shape)
    opens = np.ones(ordered.shape, dtype=bool)
    opens[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    starts = np.maximum.accumulate(np.where(opens, index, 0), axis=-1)
    place: Real = index - starts + 1
    return place
