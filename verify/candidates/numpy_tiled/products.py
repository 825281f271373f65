"""Matrix products in the declared accumulation, and their form in which a hidden term is left out by selection."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from verify.candidates.numpy_tiled.rounding import F32, truncate
from verify.candidates.numpy_tiled.scheme import Scheme

Keep = NDArray[np.bool_]


def product(left: F32, right: F32, scheme: Scheme) -> F32:
    """left @ right accumulated in fp32.

    Parameters
    ----------
    left : fp32 array, shape (..., rows, terms)
    right : fp32 array, shape (..., terms, columns)
    scheme : Scheme
        accumulate=rtz truncates the accumulator after every `accumulate_chunk` exact products, as tensor cores do
        (Fasi et al. 2021, Numerical behavior of NVIDIA tensor cores); accumulate=rne rounds to nearest.

    Returns
    -------
    fp32 array, shape (..., rows, columns)
    """
    if scheme.arithmetic.accumulate == "rtz":
        return _truncated_product(left, right, scheme.arithmetic.accumulate_chunk)
    if scheme.summation == "sequential":
        return _sequential_product(left, right)
    result: F32 = np.matmul(left, right)
    return result


def visible_product(weights: F32, keep: Keep | None, values: F32, scheme: Scheme) -> F32:
    """weights @ values over the terms that `keep` admits.

    A hidden weight is 0, and 0 * NaN is NaN: terms whose values are not finite are therefore selected one by one.

    Parameters
    ----------
    weights : fp32 array, shape (..., rows, terms)
        0 where `keep` is False.
    keep : bool array broadcastable to `weights`, or None
        None: every term is visible.
    values : fp32 array, shape (..., terms, columns)

    Returns
    -------
    fp32 array, shape (..., rows, columns)
    """
    finite = np.isfinite(values)
    if keep is None or finite.all():
        return product(weights, values, scheme)
    bad = ~finite.all(axis=-1)
    terms = np.flatnonzero(bad.reshape(-1, bad.shape[-1]).any(axis=0))
    cleaned = values.copy()
    cleaned[..., terms, :] = 0
    total = product(weights, cleaned, scheme)
    admitted = np.broadcast_to(keep, weights.shape)
    for term in terms:
        part = weights[..., term, None] * values[..., None, term, :]
        total = total + np.where(admitted[..., term, None], part, np.float32(0))
    return total


def _truncated_product(left: F32, right: F32, chunk: int) -> F32:
    total = np.zeros((*left.shape[:-1], right.shape[-1]), dtype=np.float32)
    wide_left, wide_right = left.astype(np.float64), right.astype(np.float64)
    for start in range(0, left.shape[-1], chunk):
        piece = slice(start, start + chunk)
        total = truncate(total.astype(np.float64) + np.matmul(wide_left[..., piece], wide_right[..., piece, :]))
    return total


def _sequential_product(left: F32, right: F32) -> F32:
    total = np.zeros((*left.shape[:-1], right.shape[-1]), dtype=np.float32)
    for term in range(left.shape[-1]):
        total = total + left[..., term, None] * right[..., None, term, :]
    return total
