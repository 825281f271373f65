"""The hard regions are really drawn, and often: shares of a fixed sample of cases, each with a stated minimum."""

from collections import Counter
from collections.abc import Callable
from functools import cache

import pytest
from hypothesis import Phase, given, settings

from verify.case import Case, features
from verify.contract import OPTIONAL_FEATURES
from verify.grid.axes import TILE_EDGES
from verify.grid.coverage import AXES, feature_coverage
from verify.inputs import make_inputs
from verify.problem import EVERY_LAYOUT, AttentionProblem
from verify.recipes import drawn_recipe_names
from verify.strategies import cases

SAMPLE = 1500
DTYPES = ("fp32", "fp16", "bf16")
NAMED = sorted(OPTIONAL_FEATURES)


@cache
def sample() -> tuple[Case, ...]:
    """The same SAMPLE cases on every run."""
    drawn: list[Case] = []

    @settings(max_examples=SAMPLE, database=None, derandomize=True, deadline=None, phases=[Phase.generate])
    @given(case=cases())
    def collect(case: Case) -> None:
        drawn.append(case)

    collect()
    return tuple(drawn)


def count(holds: Callable[[AttentionProblem], bool]) -> int:
    return sum(holds(case.problem) for case in sample())


def lengths(problem: AttentionProblem) -> list[tuple[int, int]]:
    return [problem.lengths(sequence) for sequence in range(problem.batch)]


def sees_nothing(problem: AttentionProblem) -> bool:
    """Some row of a sequence with rows has no key left of the causal diagonal, or no key at all."""
    bottom_right = problem.causal and problem.alignment == "bottom_right"
    return any(rows and (keys == 0 or (bottom_right and rows > keys)) for rows, keys in lengths(problem))


REGIONS: dict[str, tuple[Callable[[AttentionProblem], bool], int]] = {
    "rows that see nothing": (sees_nothing, 100),
    "no query rows": (lambda p: any(rows == 0 for rows, _ in lengths(p)), 50),
    "no keys": (lambda p: any(keys == 0 for _, keys in lengths(p)), 100),
    "rows without keys and keys without rows": (lambda p: {0} < {n for pair in lengths(p) for n in pair}, 100),
    "ragged with an empty sequence": (lambda p: p.is_ragged and any(0 in pair for pair in lengths(p)), 5),
    "ragged with several sequences": (lambda p: p.is_ragged and p.batch > 1, 50),
    "odd head dim": (lambda p: p.head_dim % 2 == 1, 200),
    "head dim off 16": (lambda p: p.head_dim % 16 != 0, 300),
    "unequal head dims": (lambda p: p.head_dim != p.head_dim_v, 75),
    "fewer rows than keys": (lambda p: 0 < p.seqlen_q < p.seqlen_k, 200),
    "more rows than keys": (lambda p: p.seqlen_q > p.seqlen_k > 0, 75),
    "causal with unequal seqlens": (lambda p: p.causal and p.seqlen_q != p.seqlen_k, 100),
    "ratio unlike number of kv heads": (lambda p: p.group > 1 and p.group != p.nheads_kv, 300),
    "window of zero": (lambda p: p.window == (0, 0), 1),
    "window longer than the keys": (lambda p: p.window is not None and (p.window[0] or 0) > p.seqlen_k > 0, 15),
    "unbounded window side": (lambda p: p.window is not None and None in p.window, 50),
    "mask that hides all": (lambda p: p.pattern != "none" and p.keep_fraction == 0.0, 15),
    "scale that is not the default": (lambda p: p.softmax_scale in (1.0, 0.7, 0.01), 150),
    "bias that hides keys": (lambda p: 0 < p.bias_hidden < 1, 10),
    "page larger than the keys": (lambda p: p.page_size > p.seqlen_k > 0, 10),
}


def test_the_sample_is_complete() -> None:
    assert len(sample()) == SAMPLE


@pytest.mark.parametrize("region", REGIONS)
def test_a_hard_region_is_reached(region: str) -> None:
    holds, least = REGIONS[region]
    assert count(holds) >= least


@pytest.mark.parametrize("length", [0, 1, 2, 3, *TILE_EDGES])
def test_every_hard_length_is_reached_by_rows_and_by_keys(length: int) -> None:
    assert count(lambda p: any(rows == length for rows, _ in lengths(p))) >= 5
    assert count(lambda p: any(keys == length for _, keys in lengths(p))) >= 5


@pytest.mark.parametrize("group", [2, 3, 5, 7])
def test_every_group_ratio_is_reached(group: int) -> None:
    assert count(lambda p: p.group == group) >= 50


@pytest.mark.parametrize("feature", NAMED)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_feature_is_reached_in_every_dtype(dtype: str, feature: str) -> None:
    assert count(lambda p: p.dtype == dtype and feature in features(p)) >= 5


@pytest.mark.parametrize("layout", EVERY_LAYOUT)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_layout_is_reached_in_every_dtype(dtype: str, layout: str) -> None:
    assert count(lambda p: p.dtype == dtype and p.layout == layout) >= 20


def test_every_recipe_is_reached() -> None:
    found = Counter(case.recipe.name for case in sample())
    assert set(found) == set(drawn_recipe_names())
    assert min(found.values()) >= 5


def test_features_are_drawn_alone_and_together() -> None:
    found = Counter(len(set(features(case.problem)) & OPTIONAL_FEATURES) for case in sample())
    assert all(found[number] >= 30 for number in range(5))


def test_nearly_every_pair_outside_the_recipes_is_reached() -> None:
    reached = feature_coverage(sample())
    # Sequences of 512 keys and more belong to the grid; the default max_seqlen is 160.
    missing, covered = (
        [p for p in pairs if "recipe" not in (p[0][0], p[1][0]) and ("keys", "long") not in p]
        for pairs in (reached.missing, reached.covered)
    )
    assert len(missing) <= 0.01 * len(covered), missing
    assert len(AXES) == 10


def test_drawn_masks_have_rows_that_see_nothing() -> None:
    masks = [make_inputs(case).arrays["mask"] for case in sample() if case.problem.pattern == "boolean"]
    partly = [mask for mask in masks if mask.any() and not mask.all()]
    assert sum(bool((~mask.any(axis=-1)).any()) for mask in partly) >= 30
