"""The grid is explicit: the same distinct cases each time, every pair that matters covered, sizes within their cap."""

import hashlib
from typing import Any

import pytest

from verify.case import Case, Recipe
from verify.errors import UsageError
from verify.grid import PROFILES, feature_coverage, profile_cases
from verify.grid.axes import make_problem
from verify.grid.coverage import AXES, possible_pairs, properties
from verify.grid.pairwise import SMALL, Sampler
from verify.inputs import make_inputs

# SHA-256 prefixes of the joined case ids at seed 0: a change of the grid is a decision, not an accident.
GOLDEN = {"quick": "c5ec38a4b14ea071", "full": "68e8e904db16ffd8"}


def problem_facts(case: Case) -> dict[str, Any]:
    p = case.problem
    return {"q": p.seqlen_q, "k": p.seqlen_k, "d": p.head_dim, "recipe": str(case.recipe), "causal": p.causal}


@pytest.mark.parametrize(("profile", "expected"), GOLDEN.items())
def test_the_grid_is_the_same_everywhere(profile: str, expected: str) -> None:
    ids = "\n".join(case.case_id for case in profile_cases(profile, seed=0))
    assert hashlib.sha256(ids.encode()).hexdigest()[:16] == expected


@pytest.mark.parametrize("profile", PROFILES)
def test_cases_are_distinct_problems_and_parse_back(profile: str) -> None:
    cases = profile_cases(profile, seed=3)
    assert len({(case.problem, case.recipe) for case in cases}) == len(cases)
    assert all(Case.parse(case.case_id, origin="grid") == case for case in cases)


def test_profiles_have_their_sizes_and_contain_one_another() -> None:
    quick, full, nightly = (profile_cases(profile, seed=0) for profile in PROFILES)
    assert 100 <= len(quick) <= 180
    assert 900 <= len(full) <= 1100
    assert full[: len(quick)] == quick
    assert nightly[: len(full)] == full
    assert len(nightly) > len(full) + 250


def test_the_seed_changes_values_of_quick_and_problems_of_nightly() -> None:
    one, two = profile_cases("quick", seed=1), profile_cases("quick", seed=2)
    assert [case.problem for case in one] == [case.problem for case in two]
    assert not {case.seed for case in one} & {case.seed for case in two}
    nightly = [{case.problem for case in profile_cases("nightly", seed=seed)[-200:]} for seed in (1, 2)]
    assert len(nightly[0] & nightly[1]) < 20


@pytest.mark.parametrize("other", [axis for axis in AXES if axis != "dtype"])
def test_quick_covers_every_value_in_every_dtype(other: str) -> None:
    assert feature_coverage(profile_cases("quick", seed=0)).missing_of("dtype", other) == []


def test_full_covers_every_possible_pair() -> None:
    coverage = feature_coverage(profile_cases("full", seed=0))
    assert sorted(coverage.missing) == []
    assert coverage.share == 1.0


def test_coverage_notices_what_is_missing() -> None:
    causal = Case(problem=make_problem(causal=True, dtype="fp16"), recipe=Recipe.of("normal"), seed=0)
    coverage = feature_coverage([causal])
    assert (("dtype", "fp16"), ("mask", "causal")) in coverage.covered
    assert (("dtype", "fp32"), ("mask", "causal")) in coverage.missing
    assert coverage.share == pytest.approx(len(coverage.covered) / len(possible_pairs()))
    assert feature_coverage([]).share == 0.0


@pytest.mark.parametrize("seed", range(3))
def test_every_pair_of_a_sampled_case_is_possible(seed: int) -> None:
    sampler = Sampler(seed, SMALL)
    cases = [Case(problem=problem, recipe=recipe, seed=0) for problem, recipe in (sampler.spec() for _ in range(300))]
    known = {(axis, value) for axis, values in AXES.items() for value in values}
    assert all(properties(case) <= known for case in cases)
    assert all(feature_coverage([case]).covered for case in cases)


@pytest.mark.parametrize(
    "wanted",
    [
        {"k": 65, "d": 72},
        {"d": 80},
        {"d": 96},
        {"recipe": "logits:max=1.0"},
        {"recipe": "logits:max=10.0"},
        {"recipe": "logits:max=100.0"},
        {"recipe": "logits:max=10000.0"},
        {"recipe": "v_mean:mean=100.0"},
        {"recipe": "two_keys"},
        {"recipe": "identical_keys"},
        {"recipe": "identical_queries"},
        {"recipe": "outliers"},
        {"q": 8, "k": 4096},
        {"q": 65, "k": 33, "causal": True},
        {"q": 0},
        {"k": 0},
    ],
    ids=str,
)
def test_quick_has_every_trap(wanted: dict[str, Any]) -> None:
    assert any(wanted.items() <= problem_facts(case).items() for case in profile_cases("quick", seed=0))


def test_quick_has_several_long_rows_with_few_queries() -> None:
    long = [case.problem for case in profile_cases("quick", seed=0) if case.problem.seqlen_k >= 512]
    assert len(long) >= 5
    assert max(problem.seqlen_q for problem in long) <= 8


def test_quick_cases_are_small() -> None:
    for case in profile_cases("quick", seed=0):
        p = case.problem
        assert p.batch * p.nheads * p.seqlen_q * p.seqlen_k <= 40_000, case.case_id


def test_every_quick_case_has_inputs() -> None:
    assert all(make_inputs(case).arrays for case in profile_cases("quick", seed=0))


def test_unknown_profiles_and_seeds_are_refused() -> None:
    with pytest.raises(UsageError, match="profile='slow'"):
        profile_cases("slow", seed=0)
    with pytest.raises(UsageError, match="seed=-1"):
        profile_cases("quick", seed=-1)
