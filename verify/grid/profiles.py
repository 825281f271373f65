"""Cases of each profile. The problems of quick and full are fixed; the seed changes their values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from verify.case import Case, Recipe, features
from verify.errors import require
from verify.grid.axes import GRID_RECIPES, MASKS, SCORES, layouts_for, make_problem, mask_fields, score_fields
from verify.grid.pairwise import LARGE, MEDIUM, SMALL, Sampler, cover, spec_pairs
from verify.grid.traps import NORMAL, Spec, rare_specs, trap_specs

PROFILES = ("quick", "full", "nightly")

QUICK_CASES = 168
"""Cases of quick beside those that few candidates take, which follow them."""
FULL_SMALL, FULL_MEDIUM, FULL_LARGE = 660, 130, 40
"""Cases that `full` adds to quick, by size."""
NIGHTLY_RANDOM = 300
"""Cases of `nightly` whose problems change with the seed."""
_STRUCTURE_SEED = 20260101
"""Seed of the sampled problems of quick and full: any fixed number."""
_SEED_STEP = 1_000_003
"""Distance of the value seeds of two runs: a prime above the number of cases, so that runs share no seed."""


def profile_cases(profile: str, *, seed: int) -> tuple[Case, ...]:
    """Cases of a profile, distinct, in a fixed order from simple traps to large sizes.

    Raises
    ------
    UsageError
        For an unknown profile or a seed outside [0, 2^40).
    """
    require(profile in PROFILES, "profile", profile, "one of " + ", ".join(PROFILES))
    require(0 <= seed < 2**40, "seed", seed, "an integer in [0, 2^40)")
    specs = {"quick": _quick, "full": _full}.get(profile, _full)()
    if profile == "nightly":
        specs = (*specs, *_longest(), *_rotating(seed))
    start = seed * _SEED_STEP
    return tuple(
        Case(problem=problem, recipe=recipe, seed=start + index, origin="grid")
        for index, (problem, recipe) in enumerate(dict.fromkeys(specs))
    )


@cache
def _quick() -> tuple[Spec, ...]:
    specs = trap_specs()
    specs += list(_recipe_sweep(specs))
    specs += list(_feature_sweep(specs))
    covered = {pair for spec in specs for pair in spec_pairs(spec)}
    sampler = Sampler(_STRUCTURE_SEED, SMALL, rare=False)
    return (*specs, *cover(covered, QUICK_CASES - len(specs), sampler.spec), *rare_specs())


def _recipe_sweep(specs: Sequence[Spec]) -> Iterator[Spec]:
    """Plain problems, which every candidate takes, for each dtype that has not met a recipe yet."""
    met = {(problem.dtype, recipe.name) for problem, recipe in specs if set(features(problem)) <= {"causal", "gqa"}}
    shapes: tuple[dict[str, Any], ...] = (
        {"seqlen_q": 33, "seqlen_k": 65, "head_dim": 72},
        {"seqlen_q": 65, "seqlen_k": 65, "head_dim": 80, "causal": True},
        {"seqlen_q": 17, "seqlen_k": 100, "head_dim": 96, "nheads": 6, "nheads_kv": 2},
        {"seqlen_q": 33, "seqlen_k": 129, "head_dim": 64, "causal": True, "nheads": 3, "nheads_kv": 1},
    )
    turn = 0
    for recipe in GRID_RECIPES:
        for dtype in ("fp32", "fp16", "bf16"):
            if (dtype, recipe.name) not in met:
                met.add((dtype, recipe.name))
                yield make_problem(dtype=dtype, **shapes[turn % len(shapes)]), recipe
                turn += 1


def _feature_sweep(specs: Sequence[Spec]) -> Iterator[Spec]:
    """One feature at a time, for each dtype that has not met it: candidates that take few features take these."""
    covered = {pair for spec in specs for pair in spec_pairs(spec)}
    for dtype in ("fp32", "fp16", "bf16"):
        single = [(("mask", mask), mask_fields(mask)) for mask in MASKS]
        single += [(("score", score), score_fields((score,))) for score in SCORES]
        single += [(("layout", layout), {"layout": layout}) for layout in layouts_for("plain", 1, False, True)]
        for property_, fields in single:
            if (("dtype", dtype), property_) not in covered:
                yield (
                    make_problem(dtype=dtype, batch=2, seqlen_q=33, seqlen_k=65, nheads=2, head_dim=72, **fields),
                    NORMAL,
                )


@cache
def _full() -> tuple[Spec, ...]:
    specs = list(_quick())
    covered = {pair for spec in specs for pair in spec_pairs(spec)}
    for offset, (sizes, count) in enumerate(((SMALL, FULL_SMALL), (MEDIUM, FULL_MEDIUM), (LARGE, FULL_LARGE))):
        specs += cover(covered, count, Sampler(_STRUCTURE_SEED + 1 + offset, sizes).spec)
    return tuple(specs)


def _longest() -> list[Spec]:
    recipes = (NORMAL, Recipe.of("v_mean"), Recipe.of("rising_tiles"), Recipe.of("needle", position="first"))
    return [
        (make_problem(seqlen_q=4, seqlen_k=16384, head_dim=head_dim, dtype=dtype, causal=causal), recipe)
        for recipe in recipes
        for dtype, head_dim, causal in (("fp32", 80, False), ("fp16", 64, True), ("bf16", 128, False))
    ]


def _rotating(seed: int) -> list[Spec]:
    sampler = Sampler(_STRUCTURE_SEED + 10 + seed, SMALL)
    return [sampler.spec() for _ in range(NIGHTLY_RANDOM)]
