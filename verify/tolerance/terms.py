"""Terms of one output on one block of work, before they are added to those of the case."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from verify.dense import Float64
from verify.tolerance.roundings import SAFETY, Real


@dataclass(slots=True, kw_only=True, eq=False)
class Terms:
    """Terms of one output on one block: hard adds, variance adds in squares, worst caps their combination."""

    hard: dict[str, Float64] = field(default_factory=dict)
    variance: dict[str, Float64] = field(default_factory=dict)
    worst: Float64


def scale_terms(
    hard: Mapping[str, Real], variance: Mapping[str, Real], limit: Real, *, unit: float, seen: Real
) -> Terms:
    """Terms in real units, exactly 0 where nothing contributes. `limit` already contains SAFETY."""
    everywhere = bool(np.all(seen))

    def scale(values: Real, factor: float) -> Float64:
        # In fp64: a variance below 1e-38 would vanish in fp32.
        real: Float64 = np.multiply(values, factor, dtype=np.float64)
        return real if everywhere else np.where(seen, real, 0.0)

    return Terms(
        hard={name: scale(value, unit * SAFETY) for name, value in hard.items()},
        variance={name: scale(value, (unit * SAFETY) ** 2) for name, value in variance.items()},
        worst=scale(limit, unit),
    )


def total(values: Iterable[Real]) -> Real:
    """Sum of at least one array."""
    first, *others = values
    for value in others:
        first = first + value
    return first
