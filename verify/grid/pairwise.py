"""Fills a grid by greedy pairwise covering: of some sampled specs, take the one with most pairs not covered yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from verify.case import Case, Recipe
from verify.grid.axes import (
    FORMS,
    GRID_RECIPES,
    GROUPS,
    HEAD_DIMS,
    MASKS,
    ODD_HEAD_DIMS,
    SCORES,
    TILE_EDGES,
    TINY_LENGTHS,
    layouts_for,
    length_fields,
    make_problem,
    mask_fields,
    score_fields,
)
from verify.grid.coverage import Pair, pairs
from verify.grid.traps import Spec

T = TypeVar("T")

TRIES = 32
"""Specs sampled for each one taken."""
DTYPE_WEIGHT = 16
"""Weight of a pair with a dtype in it, beside 1 of the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Ranges that a sampler draws from."""

    lengths: tuple[int, ...]
    max_score_elements: int
    """Most batch x nheads x seqlen_q x seqlen_k of a case: what the fp64 reference costs."""
    max_rows: int = 2**30
    """Most query rows of a sequence."""


SMALL = Sizes(lengths=(*TINY_LENGTHS, *TILE_EDGES, 20, 100), max_score_elements=40_000)
MEDIUM = Sizes(lengths=(17, 65, 129, 200, 255, 256, 257, 384, 511, 512, 513), max_score_elements=300_000)
LARGE = Sizes(lengths=(640, 1000, 1024, 1025, 1537, 2048), max_score_elements=300_000, max_rows=64)


STRIDED_SHARE, HIDING_SHARE = 0.08, 0.4
"""Share of the specs whose head vectors get gaps, and of the additive biases that get elements of -inf."""


class Sampler:
    """Draws valid specs from a seeded stream.

    `rare` adds what few candidates take. It has a stream of its own, so that everything else is drawn alike without it.
    """

    def __init__(self, seed: int, sizes: Sizes, *, rare: bool = True) -> None:
        self._rng = np.random.Generator(np.random.PCG64(seed))
        self._rare_rng = np.random.Generator(np.random.PCG64([seed, 1])) if rare else None
        self._sizes = sizes

    def pick(self, options: Sequence[T]) -> T:
        """One of the options, each equally likely."""
        return options[int(self._rng.random() * len(options))]

    def spec(self) -> Spec:
        """One spec within the sizes."""
        while True:
            found = self._attempt()
            p = found[0]
            if p.batch * p.nheads * p.seqlen_q * p.seqlen_k <= self._sizes.max_score_elements:
                return found

    def _attempt(self) -> Spec:
        form = self.pick(("plain", *FORMS))
        group = self.pick((1, *GROUPS))
        nheads_kv = self.pick((1, 2) if group > 3 else (1, 2, 3))
        lengths = self._lengths(form)
        head_dim = self.pick((*HEAD_DIMS, self.pick(ODD_HEAD_DIMS)))
        head_dim_v = self.pick((head_dim, head_dim, head_dim, self.pick(HEAD_DIMS)))
        square = max(lengths[0]) == max(lengths[1])
        fields: dict[str, Any] = {
            "dtype": self.pick(("fp32", "fp16", "bf16")),
            "nheads": group * nheads_kv,
            "nheads_kv": nheads_kv,
            "head_dim": head_dim,
            "head_dim_v": head_dim_v,
            "layout": self.pick(layouts_for(form, group, square, head_dim == head_dim_v)),
            **length_fields(form, *lengths, page_size=self.pick((1, 4, 16, 64))),
            **self._mask(),
            **self._scores(),
        }
        return make_problem(**fields | self._rarities(fields)), self._recipe()

    def _lengths(self, form: str) -> tuple[list[int], list[int]]:
        batch = self.pick((1, 2, 3))
        rows = [min(self.pick(self._sizes.lengths), self._sizes.max_rows) for _ in range(batch)]
        keys = [self.pick(self._sizes.lengths) for _ in range(batch)]
        if form != "ragged":
            rows = rows[:1] * batch
            # packed_qkv needs equal lengths, which independent draws hardly ever give.
            if self._rng.random() < 0.4 and self._sizes.max_rows >= max(keys):
                rows = [max(keys)] * batch
        return rows, keys

    def _mask(self) -> dict[str, Any]:
        window = (self.pick((0, 3, 16, 40, None)), self.pick((0, 2, 16, None)))
        fields = mask_fields(self.pick(MASKS), window)
        if "pattern" in fields:
            fields |= {"keep_fraction": self.pick((0.75, 0.3)), "block_size": self.pick(((16, 16), (8, 32)))}
        return fields

    def _scores(self) -> dict[str, Any]:
        # Most candidates take few of these, so most cases have none.
        count = self.pick((0, 0, 0, 1, 1, 2))
        return score_fields([self.pick(SCORES) for _ in range(count)])

    def _rarities(self, fields: dict[str, Any]) -> dict[str, Any]:
        if self._rare_rng is None:
            return {}
        strided, hiding = self._rare_rng.random() < STRIDED_SHARE, self._rare_rng.random() < HIDING_SHARE
        rare: dict[str, Any] = {"layout": "strided"} if strided else {}
        if hiding and fields.get("bias") == "additive":
            rare["bias_hidden"] = 0.25 if self._rare_rng.random() < 0.5 else 0.9
        return rare

    def _recipe(self) -> Recipe:
        return self.pick(GRID_RECIPES)


def cover(covered: set[Pair], count: int, sample: Callable[[], Spec]) -> list[Spec]:
    """`count` specs, each the best of TRIES samples; `covered` grows by their pairs."""
    chosen: list[Spec] = []
    for _ in range(count):
        samples = [sample() for _ in range(TRIES)]
        gained = [spec_pairs(spec) - covered for spec in samples]
        best = max(range(TRIES), key=lambda at: sum(_weight(pair) for pair in gained[at]))
        covered |= gained[best]
        chosen.append(samples[best])
    return chosen


def _weight(pair: Pair) -> int:
    """Kernels are compiled for each dtype apart, so what a dtype has not met comes first."""
    return DTYPE_WEIGHT if "dtype" in (pair[0][0], pair[1][0]) else 1


def spec_pairs(spec: Spec) -> frozenset[Pair]:
    """Pairs of properties of a spec."""
    return pairs(Case(problem=spec[0], recipe=spec[1], seed=0))
