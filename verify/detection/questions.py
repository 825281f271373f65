"""What honest candidates are asked, without end and in a fixed order: grid, uniform and drawn cases, most of them
small.

Small cases make a case-check cheap, so that many problems are met; a share of large ones and of the checks that cost
several calls keeps both from being left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as hypothesis_seed

from verify.case import Case
from verify.checks import ALL
from verify.detection.cases import narrowed, scoring_cases
from verify.dtypes import STORAGE_DTYPES
from verify.grid import profile_cases
from verify.grid.pairwise import SMALL, Sampler
from verify.strategies import cases

UNIFORM_SIZES = replace(SMALL, max_score_elements=10_000)
"""The lengths of the grid's small cases with fewer scores: as in fuzzing, many cases find more than large ones."""
DRAWN_SEQLEN, DRAWN_SCORES = 64, 10_000
"""Longest sequence and most scores of a case drawn by Hypothesis."""
DRAWN_BATCH = 200
"""Cases of one Hypothesis run: each starts with its simplest choices."""
_SEED_STEP = 1_000_003
"""Distance of the streams of two seeds: a prime above the cases that a campaign takes from one stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One case and the checks to ask."""

    source: str
    case: Case
    checks: tuple[str, ...] = ()
    """Names of checks; empty = those of a plain run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A stream of cases and its share in a cycle."""

    name: str
    share: int
    """Questions in each cycle."""
    cases: Callable[[int], Iterator[Case]]
    checks: tuple[str, ...] = ()


def questions(seed: int) -> Iterator[Question]:
    """The questions of that seed, endless; the same seed gives the same questions in the same order.

    The drawn ones also depend on the version of Hypothesis, which takes constants from the modules that are loaded.
    """
    streams = [(source, source.cases(seed)) for source in SOURCES]
    while True:
        for source, stream in streams:
            for _ in range(source.share):
                yield Question(source=source.name, case=next(stream), checks=source.checks)


def _grid(seed: int) -> Iterator[Case]:
    """The small cases of the full grid, dtypes in turn, one round of values after another."""
    for round_ in count(seed):
        rounds = [scoring_cases(dtype, profile="full", seed=round_) for dtype in STORAGE_DTYPES]
        for turn in zip(*rounds, strict=True):
            yield from turn


def _uniform(seed: int) -> Iterator[Case]:
    for number in count(seed * _SEED_STEP):
        problem, recipe = Sampler(number, UNIFORM_SIZES).spec()
        yield _small(Case(problem=problem, recipe=recipe, seed=number, origin="grid"))


def _drawn(seed: int) -> Iterator[Case]:
    for number in count(seed * _SEED_STEP):
        yield from (_small(case) for case in _hypothesis_run(number))


def _hypothesis_run(seed: int) -> list[Case]:
    found: list[Case] = []

    @hypothesis_seed(seed)
    @settings(
        max_examples=DRAWN_BATCH,
        deadline=None,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases(max_seqlen=DRAWN_SEQLEN, max_score_elements=DRAWN_SCORES))
    def collect(case: Case) -> None:
        found.append(case)

    collect()
    return found


def _whole(seed: int) -> Iterator[Case]:
    """Cases of the full grid as they are, in random order: any head dim, paged, and up to the grid's largest sizes."""
    for round_ in count(seed):
        found = profile_cases("full", seed=round_)
        order = np.argsort(np.random.Generator(np.random.PCG64(round_)).random(len(found)), kind="stable")
        yield from (found[at] for at in order)


def _small(case: Case) -> Case:
    """The case with the head dims that one compilation of a kernel serves."""
    return narrowed(case, case.problem.dtype)


SOURCES = (
    Source(name="grid", share=9, cases=_grid),
    Source(name="uniform", share=5, cases=_uniform),
    Source(name="drawn", share=3, cases=_drawn),
    Source(name="whole grid", share=1, cases=_whole),
    Source(name="every check", share=2, cases=_uniform, checks=(ALL,)),
)
"""Shares by cost: a case-check of `every check` and of `whole grid` costs about twice that of the others."""
