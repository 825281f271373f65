"""A case id that carries its values gives exactly those values back."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verify.case import Case
from verify.errors import UsageError
from verify.fuzz.pinned_values import pin, simpler_values
from verify.inputs import make_inputs
from verify.problem import AttentionProblem
from verify.recipes import drawn_recipe_names
from verify.recipes.pinned import pinned_recipe
from verify.strategies import cases

PROBLEM = AttentionProblem(seqlen_q=1, seqlen_k=2, head_dim=4, head_dim_v=4, softmax_scale=0.5)
NUMBERS = st.one_of(st.sampled_from((0.0, -0.0, 1.0, -2.0)), st.floats(width=32))


@given(values=st.lists(NUMBERS, min_size=4, max_size=4))
def test_values_in_a_case_id_come_back_bit_for_bit(values: list[float]) -> None:
    array = np.array(values).reshape(1, 1, 1, 4)
    case = Case(problem=PROBLEM, recipe=pinned_recipe({"q": array}), seed=1)
    found = make_inputs(Case.parse(case.case_id)).arrays["q"]
    assert np.array_equal(found, array.astype(np.float32), equal_nan=True)
    known = ~np.isnan(array)
    assert np.array_equal(np.signbit(found)[known], np.signbit(array)[known])


@given(case=cases(max_seqlen=6, max_batch=2, max_score_elements=200))
def test_pinning_a_case_changes_no_bit_of_an_operand(case: Case) -> None:
    pinned = pin(case)
    if pinned is not None:
        again = make_inputs(Case.parse(pinned.case.case_id)).arrays
        before = make_inputs(case).arrays
        for name in ("q", "k", "v", "dout"):
            same = np.array_equal(again[name].astype(np.float64), before[name].astype(np.float64), equal_nan=True)
            assert same, name


def test_every_step_keeps_the_operands_in_the_shape_of_the_problem() -> None:
    pinned = pin(Case.parse("attn1:b=2,sq=2,sk=3,h=4,hkv=2,d=2,dtype=bf16,recipe=normal,seed=1"))
    assert pinned is not None
    steps = list(simpler_values(pinned))
    assert len(steps) > 50
    for step in steps:
        make_inputs(step.case)


def test_integers_are_written_without_escapes() -> None:
    case = Case(problem=PROBLEM, recipe=pinned_recipe({"q": np.full((1, 1, 1, 4), 0.0)}), seed=0)
    assert case.case_id.endswith("recipe=pinned:q=0,seed=0")


@pytest.mark.parametrize("text", ["1~2~3~4~5", "one", "1x"])
def test_bad_values_are_refused_in_one_line(text: str) -> None:
    with pytest.raises(UsageError, match="pinned:q"):
        make_inputs(Case.parse(f"attn1:b=1,sq=1,sk=2,h=1,d=4,dtype=fp32,recipe=pinned:q={text},seed=0"))


def test_pinned_values_are_never_drawn() -> None:
    assert not {"pinned", "capture"} & set(drawn_recipe_names())
