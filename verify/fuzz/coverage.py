"""Which pairs and triples of features a campaign has run, of those that the candidate takes. Pure, mergeable, small.

Combinations are numbered, so that a campaign can write down what is new and read it back when it is resumed.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations

from verify.case import Case
from verify.contract import OPTIONAL_FEATURES, Capabilities
from verify.grid.coverage import AXES, Property, possible_pairs, properties

TRIPLE_AXES = ("dtype", "mask", "form", "group", "layout", "recipe", "keys")
"""Axes of the three-way coverage: dtype, mask, ragged, GQA, layout, recipe, length class."""
AXES_VERSION = zlib.crc32(repr((AXES, TRIPLE_AXES)).encode())
"""Numbers of combinations mean the same only under the same axes."""

Combination = tuple[Property, ...]


@cache
def combination_numbers() -> dict[Combination, int]:
    """Number of every possible pair and triple, pairs first."""
    found: list[Combination] = sorted(possible_pairs())
    values = [(axis, value) for axis in sorted(TRIPLE_AXES) for value in sorted(AXES[axis])]
    possible = possible_pairs()
    found += [
        (a, b, c)
        for a, b, c in combinations(values, 3)
        if (a, b) in possible and (a, c) in possible and (b, c) in possible
    ]
    return {combination: number for number, combination in enumerate(found)}


@dataclass(slots=True)
class FeatureCoverage:
    """Combinations that have run, and how many can run on one candidate."""

    capabilities: Capabilities
    max_seqlen: int
    """Longest sequence of the campaign: longer ones are no gap."""
    covered: set[int] = field(default_factory=set)
    _reachable: dict[int, frozenset[int]] = field(default_factory=dict)

    def add(self, case: Case) -> list[int]:
        """Numbers of the combinations that this case is the first to run."""
        numbers = combination_numbers()
        ordered = sorted(properties(case))
        short = [item for item in ordered if item[0] in TRIPLE_AXES]
        seen = (*combinations(ordered, 2), *combinations(short, 3))
        new = [numbers[item] for item in seen if item in numbers and numbers[item] not in self.covered]
        self.covered.update(new)
        return new

    def merge(self, numbers: Iterable[int]) -> None:
        """Combinations that were run elsewhere or earlier."""
        self.covered.update(numbers)

    def share(self, size: int) -> float:
        """Share of the reachable pairs (size 2) or triples (size 3) that have run."""
        if size not in self._reachable:
            allowed = _allowed_values(self.capabilities, self.max_seqlen)
            self._reachable[size] = frozenset(
                number
                for combination, number in combination_numbers().items()
                if len(combination) == size and all(item in allowed for item in combination)
            )
        reachable = self._reachable[size]
        return len(reachable & self.covered) / len(reachable) if reachable else 1.0


def _allowed_values(capabilities: Capabilities, max_seqlen: int) -> frozenset[Property]:
    """(axis, value) that the candidate declares and the campaign draws."""
    features = capabilities.features
    masks = {"none": True, "causal_window": {"causal", "window"} <= features}
    refused = {("mask", name) for name in AXES["mask"] if not masks.get(name, name in features)}
    refused |= {("score", name) for name in AXES["score"] if name != "none" and name not in features}
    refused |= {("form", name) for name in AXES["form"] if name != "plain" and name not in features}
    refused |= {("group", name) for name in AXES["group"] if name != "1" and "gqa" not in features}
    refused |= {("layout", name) for name in AXES["layout"] if name not in capabilities.layouts}
    refused |= {("dtype", name) for name in AXES["dtype"] if name not in capabilities.dtypes}
    refused |= set() if "dv" in features else {("head_dim", "dv")}
    refused |= set() if capabilities.head_dim_multiple == 1 else {("head_dim", "odd")}
    refused |= set() if capabilities.empty else {("keys", "empty")}
    # Longer sequences than the campaign draws come from the grid alone.
    refused |= {("keys", "long")} if max_seqlen < 512 else set()
    assert {"gqa", "dv"} <= OPTIONAL_FEATURES, "names of features as the contract has them"
    return frozenset((axis, value) for axis, values in AXES.items() for value in values) - refused
