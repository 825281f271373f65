"""Products that a hidden NaN or infinity cannot enter.

A hidden key has weight 0, but 0 * NaN is NaN, so a plain product would carry a NaN of a hidden key into every row.
"""

from __future__ import annotations

from typing import Any

import numpy

from references.options import Array


def all_finite(*arrays: Array) -> bool:
    """Whether no element is NaN or infinite, from one sum per array.

    A sum that overflows answers False for finite data; that costs the caller speed, never correctness.
    """
    return all(bool(numpy.isfinite(float(array.sum()))) for array in arrays)


def visible_matmul(weights: Array, keep: Array, values: Array, xp: Any = numpy) -> Array:
    """weights @ values as the IEEE sum over the terms that `keep` admits.

    Parameters
    ----------
    weights : fp64 array, shape (..., rows, terms)
        Exactly 0 where `keep` is False.
    keep : bool array, same shape
    values : fp64 array, shape (..., terms, columns)
        May hold NaN and infinities.

    Returns
    -------
    fp64 array, shape (..., rows, columns)

    Notes
    -----
    A term is NaN if its value is NaN, or infinite beside a weight of 0 or NaN; it is +inf or -inf by the product of
    signs otherwise. The sum is NaN if a term is NaN or if both infinities occur: exactly what adding
    the counted infinities to the finite part gives.
    """

    def occurs(left: Array, right: Array) -> Array:
        return xp.matmul(left.astype(xp.float64), right.astype(xp.float64)) > 0

    finite = xp.isfinite(values)
    total = xp.matmul(weights, xp.where(finite, values, 0.0))
    plus, minus = values == xp.inf, values == -xp.inf
    positive, negative = keep & (weights > 0), keep & (weights < 0)
    signless = keep & ~(positive | negative)
    total = total + xp.where(occurs(positive, plus) | occurs(negative, minus), xp.inf, 0.0)
    total = total + xp.where(occurs(positive, minus) | occurs(negative, plus), -xp.inf, 0.0)
    return total + xp.where(occurs(keep, xp.isnan(values)) | occurs(signless, plus | minus), xp.nan, 0.0)
