"""Collects the terms of one output over the blocks of a case: their sums at once, the single terms when asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from verify.dense import Float64, SequencePlace
from verify.tolerance.terms import Terms

SHARED = ("dbias", "dsink")
"""Outputs whose elements may receive the terms of several sequences or blocks; all others are written once."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Part:
    """Terms of one block and where they belong."""

    name: str
    """The output."""
    place: SequencePlace
    block: tuple[slice, ...]
    """Place of the block in the head-major output of its sequence."""
    terms: Terms

    def write(self, whole: Float64, values: Float64) -> None:
        """Put values of the block into the case's array, or add them where others add theirs."""
        if self.name in ("dk", "dv") and self.place.pages is not None:
            keys = np.zeros(self.place.take(self.name, whole).shape)
            keys[self.block] = values
            self.place.add(self.name, whole, keys)
            return
        sequence = self.place.take(self.name, whole)
        if self.name == "dbias" and sequence.shape[0] == 1:
            # A bias shared by all heads receives their sum.
            sequence[:, *self.block[1:]] += values.sum(axis=0, keepdims=True)
        elif self.name in SHARED:
            sequence[self.block] += values
        else:
            sequence[self.block] = values


@dataclass(slots=True, eq=False)
class TermSums:
    """Sums of the terms of one output, fp64 in its logical shape."""

    shape: tuple[int, ...]
    hard: Float64 = field(init=False)
    variance: Float64 = field(init=False)
    worst: Float64 = field(init=False)
    parts: list[Part] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.hard, self.variance, self.worst = (np.zeros(self.shape) for _ in range(3))

    def add(self, part: Part) -> None:
        """Add the terms of one block."""
        self.parts.append(part)
        part.write(self.hard, part.terms.hard_sum())
        part.write(self.variance, part.terms.variance_sum())
        part.write(self.worst, part.terms.worst_case())


class NamedTerms(Mapping[str, Float64]):
    """Name -> term in the logical shape of the output; put together from the blocks on first use."""

    def __init__(self, sums: TermSums, *, hard: bool) -> None:
        self._sums, self._hard = sums, hard
        self._terms: dict[str, Float64] | None = None

    def __getitem__(self, name: str) -> Float64:
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def _all(self) -> dict[str, Float64]:
        if self._terms is None:
            self._terms = {}
            for part in self._sums.parts:
                for name, values in part.terms.named(hard=self._hard):
                    if name not in self._terms:
                        self._terms[name] = np.zeros(self._sums.shape)
                    part.write(self._terms[name], values)
        return self._terms
