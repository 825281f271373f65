"""Addends below the rounding grid of their sum: errors of one sign, which independent roundings do not describe.

An fp32 sum S moves in steps of ulp(S) <= 2 u |S|. An addend a with |a| < ulp(S)/2 leaves it as it is: the error is -a,
each time. One of up to some ulp is rounded up or down by what is missing, and the next one of the same size likewise.
Behind a needle, the one large weight of a row, all others may be of that kind, and their errors add in full.
"""

from __future__ import annotations

import numpy as np

from verify.tolerance.operands import Operands
from verify.tolerance.roundings import CONFIDENCE, KAPPA_SQ, Real, U

GRID = 8.0 * U
"""Addends up to this share of the sum count: 2 u is ulp(S) at most, and a channel of V may hold a quarter of a row's
largest value."""


def swallowed_over_keys(ops: Operands, weights: Real, values: Real, total: Real, half: Real) -> Real | None:
    """Bound on what sums over keys lose of small addends; None where there are none.

    Parameters
    ----------
    weights : float32 array (heads, rows, keys), non-negative
    values : float32 array (kv heads, keys, dim), non-negative
        The addends are weights * values.
    total : array (heads, rows, dim)
        Sum of the addends.
    half : array (heads, rows, dim)
        Largest modulus of a partial sum.

    Returns
    -------
    array (heads, rows, dim)
        min(sum of the small addends, their number * u * half).
    """
    largest = np.repeat(values.max(axis=-1, initial=0.0), ops.group, axis=0)[:, None, :]
    small = _small(weights, weights * largest, _largest_of(total))
    if small is None:
        return None
    lost = ops.onto_rows(np.where(small, weights, np.float32(0)), values)
    bound: Real = np.minimum(lost, U * small.sum(axis=-1, keepdims=True) * half)
    return bound


def swallowed_over_rows(ops: Operands, weights: Real, values: Real, total: Real, half: Real) -> Real | None:
    """The same for sums over the rows of a group: values (heads, rows, dim), total and half (kv heads, keys, dim)."""
    stacked = ops.stack(weights)
    largest = ops.stack(values).max(axis=-1, initial=0.0)[..., None]
    small = _small(stacked, stacked * largest, _largest_of(total).swapaxes(1, 2))
    if small is None:
        return None
    lost = np.matmul(np.where(small, stacked, np.float32(0)).swapaxes(1, 2), ops.stack(values))
    bound: Real = np.minimum(lost, U * small.sum(axis=1)[..., None] * half)
    return bound


def swallowed_weights(weights: Real) -> Real:
    """Sum of the small weights of a row whose weights sum to 1, (heads, rows); at most one grid step each."""
    small = weights <= np.float32(GRID)
    lost: Real = np.minimum(np.where(small, weights, np.float32(0)), np.float32(U)).sum(axis=-1)
    return lost


def swallowed_channels(ops: Operands, rows: slice, keys: slice) -> Real | None:
    """Bound on what dot products lose of channels that are small beside a large one; None where all are of a size.

    Returns
    -------
    float32 array (heads, rows, keys)
        softmax_scale * sum of |q k| over the small channels, in units of U.
    """
    query, key = ops.q_scaled.magnitude, ops.k_scaled.magnitude
    if not query.shape[1] or not key.shape[1]:
        return None
    largest = ops.stack(query).max(axis=1) * key.max(axis=1)
    small = (largest <= np.float32(GRID) * largest.max(axis=-1, keepdims=True)) & (largest > 0)
    if not small.any():
        return None
    unit = ops.q_scaled.unit * ops.k_scaled.unit * ops.sequence.softmax_scale / U
    lost: Real = ops.scores(query[:, rows], np.where(small[:, None], key[:, keys], np.float32(0))) * np.float32(unit)
    return lost


def coherent(times: int) -> float:
    """How many independent roundings a row of `times` roundings counts as, when each tile may add less than a half ulp.

    They are `times`^2 equal errors of one ulp's half at the confidence of the bound, and `times` independent ones while
    those allow more.
    """
    return max(float(times), times * times / (KAPPA_SQ * CONFIDENCE**2))


def _largest_of(total: Real) -> Real:
    largest: Real = total.max(axis=-1, keepdims=True, initial=0.0)
    return largest


def _small(weights: Real, addends: Real, total: Real) -> Real | None:
    small = (addends <= np.float32(GRID) * total) & (weights > 0)
    return small if small.any() else None
