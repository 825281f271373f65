"""Terms of one output on one block of work, before they are added to those of the case."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from verify.dense import Float64
from verify.tolerance.roundings import SAFETY, Real


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
    seen: Real
    """bool: something contributes; elsewhere every term is exactly 0."""

    def items(self) -> Iterator[tuple[str, str, Real, float]]:
        """(kind, name, values, factor) of every term."""
        for name, value in self.hard.items():
            yield "hard", name, value, self.unit * SAFETY
        for name, value in self.variance.items():
            yield "variance", name, value, (self.unit * SAFETY) ** 2
        yield "worst", "worst case", self.worst, self.unit

    def hard_sum(self) -> Float64:
        """Sum of the hard terms in real units."""
        return self._real(total(self.hard.values()), self.unit * SAFETY)

    def variance_sum(self, without: Collection[str] = ()) -> Float64:
        """Sum of the variances in real units, some left out."""
        kept = total(value for name, value in self.variance.items() if name not in without)
        return self._real(kept, (self.unit * SAFETY) ** 2)

    def worst_case(self) -> Float64:
        """The worst case in real units."""
        return self._real(self.worst, self.unit)

    def _real(self, values: Real, factor: float) -> Float64:
        return np.where(self.seen, np.multiply(values, factor, dtype=np.float64), 0.0)


def write(target: Float64, values: Real, factor: float, seen: Real | None, *, add: bool) -> None:
    """Scale values into `target`, or add them; elements that are not `seen` (None: all are) stay as they are."""
    if seen is None and not add:
        np.multiply(values, factor, out=target, dtype=np.float64)
        return
    scaled = np.multiply(values, factor, dtype=np.float64)
    if add:
        target += scaled if seen is None else np.where(seen, scaled, 0.0)
    else:
        np.copyto(target, scaled, where=np.asarray(seen))


def total(values: Iterable[Real]) -> Real:
    """Sum of at least one array."""
    first, *others = values
    for value in others:
        first = first + value
    return first
