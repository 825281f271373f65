"""Which pairs of properties a set of cases covers, and which it could cover but does not. Pure, no arrays."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from itertools import combinations

from verify.case import Case
from verify.grid.axes import GRID_RECIPES, MASKS
from verify.problem import EVERY_LAYOUT, AttentionProblem

Property = tuple[str, str]
"""(axis, value), e.g. ("mask", "causal")."""
Pair = tuple[Property, Property]

AXES: dict[str, tuple[str, ...]] = {
    "dtype": ("fp32", "fp16", "bf16"),
    "mask": MASKS,
    "score": ("none", "bias", "hiding_bias", "alibi", "softcap", "sink", "dropout"),
    "form": ("plain", "lengths", "ragged", "paged"),
    "group": ("1", "2", "3", "5", "7"),
    "layout": EVERY_LAYOUT,
    "recipe": tuple(sorted({recipe.name for recipe in GRID_RECIPES})),
    "keys": ("empty", "tiny", "tile", "edge", "other", "long"),
    "aspect": ("equal", "few_q", "more_q"),
    "head_dim": ("64s", "8s", "odd", "dv"),
}
"""Axis -> its values. Recipes whose values are given, and `repeats`, are no values of the grid."""
LONG_KEYS = 512
_PACKED_NEEDS = {"form": ("plain", "lengths"), "group": ("1",), "aspect": ("equal",), "head_dim": ("64s", "8s", "odd")}


def properties(case: Case) -> frozenset[Property]:
    """(axis, value) of the case on every axis; several scores where it has several."""
    p = case.problem
    single = {
        "dtype": p.dtype,
        "mask": _mask(p),
        "form": "ragged" if p.is_ragged else "paged" if p.page_size else "lengths" if p.seqlens_k else "plain",
        "group": str(p.group),
        "layout": p.layout,
        "recipe": case.recipe.name,
        "keys": _keys(p),
        "aspect": "equal" if p.seqlen_q == p.seqlen_k else "few_q" if p.seqlen_q < p.seqlen_k else "more_q",
        "head_dim": _head_dim(p),
    }
    found: set[Property] = set(single.items())
    return frozenset(found | {("score", name) for name in _scores(p)})


def pairs(case: Case) -> frozenset[Pair]:
    """All pairs of properties on different axes, each in sorted order."""
    ordered = sorted(properties(case))
    return frozenset((a, b) for a, b in combinations(ordered, 2) if a[0] != b[0])


@cache
def possible_pairs() -> frozenset[Pair]:
    """Pairs that some case can have."""
    every = sorted((axis, value) for axis, values in AXES.items() for value in values)
    return frozenset((a, b) for a, b in combinations(every, 2) if a[0] != b[0] and _possible(a, b) and _possible(b, a))


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Pairs covered by a set of cases."""

    covered: frozenset[Pair]
    missing: frozenset[Pair]
    """Possible pairs that no case has."""

    @property
    def share(self) -> float:
        """Covered share of the possible pairs."""
        return 1.0 - len(self.missing) / len(possible_pairs())

    def missing_of(self, axis: str, other: str) -> list[Pair]:
        """Missing pairs between two axes, sorted."""
        return sorted(pair for pair in self.missing if {pair[0][0], pair[1][0]} == {axis, other})


def feature_coverage(cases: Iterable[Case]) -> Coverage:
    """Coverage of dtype, mask, score, form, group, layout, recipe, keys, aspect and head_dim, pair by pair."""
    covered = frozenset(pair for case in cases for pair in pairs(case))
    return Coverage(covered=covered & possible_pairs(), missing=possible_pairs() - covered)


def _mask(p: AttentionProblem) -> str:
    if p.pattern != "none":
        return p.pattern
    if p.window is not None:
        return "causal_window" if p.causal else "window"
    if p.causal:
        return "causal" if p.alignment == "bottom_right" else "causal_topleft"
    return "none"


def _scores(p: AttentionProblem) -> list[str]:
    present = {
        "bias": p.bias == "additive" and not p.bias_hidden,
        "hiding_bias": p.bias_hidden > 0,
        "alibi": p.bias == "alibi",
        "softcap": p.softcap > 0,
        "sink": p.sink,
        "dropout": p.dropout_p > 0,
    }
    return [name for name, used in present.items() if used] or ["none"]


def _keys(p: AttentionProblem) -> str:
    lengths = [p.lengths(sequence) for sequence in range(p.batch)]
    if any(0 in pair for pair in lengths):
        return "empty"
    if p.seqlen_k >= LONG_KEYS:
        return "long"
    if min(min(pair) for pair in lengths) <= 3:
        return "tiny"
    residue = p.seqlen_k % 16
    return "tile" if residue == 0 else "edge" if residue in (1, 15) else "other"


def _head_dim(p: AttentionProblem) -> str:
    if p.head_dim != p.head_dim_v:
        return "dv"
    return "64s" if p.head_dim % 64 == 0 else "8s" if p.head_dim % 8 == 0 else "odd"


def _possible(a: Property, b: Property) -> bool:
    """Whether a case can have both; asked in both orders."""
    if a == ("layout", "packed_qkv") and b[0] in _PACKED_NEEDS:
        return b[1] in _PACKED_NEEDS[b[0]]
    if a[0] == "layout" and a[1] in ("bhsd", "broadcast") and b[0] == "form":
        return b[1] in ("plain", "lengths")
    return True
