"""Terms of one output on one block of work, before they are added to those of the case."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from verify.dense import Float64
from verify.tolerance.roundings import SAFETY, Real

PREDICTED = "predicted rounding"
"""Hard term: what storing the reference's own numbers changes, whose sign is known and, for generic values, random."""
PRESCALED = "pre-scaled"
"""Hard term: as many deviations as the confidence, because rows and keys share them."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Terms:
    """Terms of one output on one block, in units of `unit`: hard adds, variance adds in squares, worst caps them.

    Scaling waits for `write` and the sums, which do it in fp64: a variance below 1e-38 would vanish in fp32.
    """

    hard: Mapping[str, Real]
    variance: Mapping[str, Real]
    worst: Real
    """Already contains SAFETY."""
    unit: float
    seen: Real | None
    """bool: something contributes; elsewhere every term is exactly 0. None: everywhere (`somewhere_hidden`)."""

    def named(self, *, hard: bool) -> Iterator[tuple[str, Float64]]:
        """(name, values in real units) of the hard terms, or of the variances."""
        terms, factor = (self.hard, self.unit * SAFETY) if hard else (self.variance, (self.unit * SAFETY) ** 2)
        for name, value in terms.items():
            yield name, np.broadcast_to(self._seen(np.multiply(value, factor, dtype=np.float64)), self.worst.shape)

    def hard_sum(self) -> Float64:
        """Sum of the hard terms in real units."""
        return self._seen(_scaled_sum(self.hard.values(), self.unit * SAFETY))

    def variance_sum(self, without: Collection[str] = ()) -> Float64:
        """Sum of the variances in real units, some left out."""
        kept = (value for name, value in self.variance.items() if name not in without)
        return self._seen(_scaled_sum(kept, (self.unit * SAFETY) ** 2))

    def worst_case(self) -> Float64:
        """The worst case in real units."""
        return self._seen(np.multiply(self.worst, self.unit, dtype=np.float64))

    def _seen(self, values: Float64) -> Float64:
        """The values, 0 where nothing contributes."""
        return values if self.seen is None else np.where(self.seen, values, 0.0)


def somewhere_hidden(seen: Real) -> Real | None:
    """The mask, or None where it is true everywhere."""
    return None if seen.all() else seen


def _scaled_sum(values: Iterable[Real], factor: float) -> Float64:
    """factor * sum of at least one array, each scaled in fp64 before it is added."""
    first, *others = (np.multiply(value, factor, dtype=np.float64) for value in values)
    for value in others:
        first = first + value
    return first


def total(values: Iterable[Real]) -> Real:
    """Sum of at least one array."""
    first, *others = values
    for value in others:
        first = first + value
    return first
