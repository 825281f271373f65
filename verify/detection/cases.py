"""The cases that score the checks: those of the grid, narrowed to one compiled variant, in one order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import zip_longest

from verify.case import Case, features
from verify.detection.order import order
from verify.grid import profile_cases
from verify.problem import AttentionProblem, default_scale

MOST_PAIRS = 40_000
"""Query-key pairs of a case, over batch and heads: a thread of the CPU backend takes some 100 ns for each."""
_WIDEST = 32


def narrowed(case: Case, dtype: str) -> Case:
    """The case in another dtype and with head dims up to 32, everything else as it was.

    A kernel is compiled for each dtype and each bucket of head dims; with this, one compilation serves all cases.
    """
    problem = case.problem
    head_dim, head_dim_v = _narrow(problem.head_dim), _narrow(problem.head_dim_v)
    default = problem.softmax_scale == default_scale(problem.head_dim)
    scale = default_scale(head_dim) if default else problem.softmax_scale
    smaller = replace(problem, dtype=dtype, head_dim=head_dim, head_dim_v=head_dim_v, softmax_scale=scale)
    return replace(case, problem=smaller)


def scoring_cases(dtype: str, *, profile: str = "quick", seed: int = 0) -> tuple[Case, ...]:
    """Distinct narrowed cases of a profile of the grid: the measured order first, then the others, features in turn."""
    found = dict.fromkeys(_suitable(dtype, profile, seed))
    rank = {text: place for place, text in enumerate(order())}
    known = [case for case in found if _key(case) in rank]
    rest = [case for case in found if _key(case) not in rank]
    return (*sorted(known, key=lambda case: rank[_key(case)]), *_in_turn(rest))


def _in_turn(cases: Sequence[Case]) -> list[Case]:
    """One case of each combination of features and recipe, the simplest first, then the next one of each."""
    groups: dict[tuple[str, ...], list[Case]] = {}
    for case in cases:
        groups.setdefault(_traits(case), []).append(case)
    turns = sorted(groups.items(), key=lambda item: len(item[0]))
    return [case for turn in zip_longest(*(group for _, group in turns)) for case in turn if case is not None]


def _traits(case: Case) -> tuple[str, ...]:
    plain = case.recipe.name == "normal" and not case.recipe.params
    return (*features(case.problem), *(() if plain else (str(case.recipe),)))


def _suitable(dtype: str, profile: str, seed: int) -> Iterator[Case]:
    for case in _grid(profile, seed):
        if not case.problem.page_size and _pairs(case.problem) <= MOST_PAIRS:
            yield narrowed(case, dtype)


@cache
def _grid(profile: str, seed: int) -> tuple[Case, ...]:
    return profile_cases(profile, seed=seed)


def _key(case: Case) -> str:
    """Identity of a case whatever its dtype."""
    return replace(case, problem=replace(case.problem, dtype="fp32")).case_id


def _pairs(problem: AttentionProblem) -> int:
    return problem.batch * problem.nheads * problem.seqlen_q * problem.seqlen_k


def _narrow(head_dim: int) -> int:
    """32 and less as they are; 64, 128, 256 -> 24, 16, 24; 72, 80, 96 -> 8, 16, 8; 33, 65 -> 17, 25."""
    return head_dim if head_dim <= _WIDEST else 8 + head_dim % 24
