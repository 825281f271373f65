"""Strategies draw what capabilities and arguments allow, refuse what is empty, and shrink to small plain cases."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st

from verify.case import Case, features
from verify.contract import OPTIONAL_FEATURES, Capabilities
from verify.errors import UsageError
from verify.problem import EVERY_LAYOUT
from verify.recipes import check_recipe
from verify.strategies import cases, problems, recipes

SEARCH = settings(max_examples=400, database=None, derandomize=True, deadline=None)


def subsets(names: Any) -> st.SearchStrategy[frozenset[str]]:
    """Non-empty subsets."""
    return st.sets(st.sampled_from(sorted(names)), min_size=1).map(frozenset)


CAPABILITIES = st.builds(
    Capabilities,
    dtypes=subsets(["fp32", "fp16", "bf16"]),
    features=subsets(OPTIONAL_FEATURES),
    layouts=subsets(EVERY_LAYOUT),
    max_head_dim=st.sampled_from([64, 128, 256]),
    head_dim_multiple=st.sampled_from([1, 8, 16, 64]),
    empty=st.booleans(),
)


@given(data=st.data(), capabilities=CAPABILITIES)
def test_only_declared_problems_are_drawn(data: st.DataObject, capabilities: Capabilities) -> None:
    problem = data.draw(problems(capabilities=capabilities))
    assert capabilities.refusal(problem) is None


@given(problem=problems(dtypes=["bf16"], features=["causal", "gqa"], layouts=["bshd"], max_seqlen=20, max_batch=2))
def test_arguments_narrow_the_space(problem: Any) -> None:
    assert (problem.dtype, problem.layout) == ("bf16", "bshd")
    assert set(features(problem)) <= {"causal", "gqa"}
    assert max(problem.seqlen_q, problem.seqlen_k) <= 20
    assert problem.batch <= 2


@given(problem=problems(max_score_elements=1000))
def test_score_elements_stay_below_the_cap_or_at_one_row_a_sequence(problem: Any) -> None:
    size = problem.batch * problem.nheads * problem.seqlen_q * problem.seqlen_k
    assert size <= 1000 or problem.seqlen_q == 1


@given(recipe=recipes())
def test_drawn_recipes_are_valid(recipe: Any) -> None:
    check_recipe(recipe)


@given(recipe=recipes(names=["logits", "v_mean"]))
def test_names_narrow_the_recipes(recipe: Any) -> None:
    assert recipe.name in ("logits", "v_mean")


@pytest.mark.parametrize(
    ("draw", "named"),
    [
        (lambda: problems(dtypes=["fp8"]), "dtypes"),
        (lambda: problems(layouts=[]), "layouts"),
        (lambda: problems(features=["colour"]), "colour"),
        (lambda: problems(max_seqlen=0), "max_seqlen"),
        (lambda: problems(max_batch=0), "max_batch"),
        (lambda: recipes(names=["nrmal"]), "nrmal"),
        (lambda: recipes(names=[]), "names"),
        (lambda: recipes(names=["capture"]), "names"),
        (lambda: cases(capabilities=Capabilities(dtypes=frozenset({"bf16"})), dtypes=["fp16"]), "dtypes"),
    ],
)
def test_an_empty_or_unknown_space_is_refused(draw: Callable[[], Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        draw()


@pytest.mark.parametrize(
    ("law", "largest"),
    [
        (lambda case: case.recipe.name != "normal", (1, 1)),
        (lambda case: case.problem.seqlen_k > 16, (1, 17)),
        (lambda case: case.problem.is_ragged, (1, 1)),
        (lambda case: case.problem.causal and case.problem.seqlen_q > case.problem.seqlen_k, (2, 1)),
        (lambda case: case.recipe.name == "rising_tiles", (1, 1)),
    ],
)
def test_failures_shrink_to_small_plain_cases(law: Callable[[Case], bool], largest: tuple[int, int]) -> None:
    smallest = find(cases(), law, settings=SEARCH).problem
    assert (smallest.batch, smallest.nheads, smallest.dtype, smallest.layout) == (1, 1, "fp32", "bshd")
    assert smallest.seqlen_q <= largest[0]
    assert smallest.seqlen_k <= largest[1]
