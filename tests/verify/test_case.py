"""Case ids: one line that says everything, read back exactly, refused in one line when malformed."""

import pytest
from hypothesis import given

from verify.case import Case, Recipe
from verify.errors import UsageError
from verify.problem import AttentionProblem
from verify.strategies import cases

MALFORMED = {
    "": "attn1:",
    "attn2:b=1,seed=0": "attn1:",
    "attn1:b=1,colour=red": "colour=red",
    "attn1:b=1,b=2": "b=2",
    "attn1:b=one": "'one'",
    "attn1:b=1,seed=-1": "'-1'",
    "attn1:b=1,seed=1.5": "'1.5'",
    "attn1:d=0": "head_dim=0",
    "attn1:dtype=fp8": "'fp8'",
    "attn1:h=3,hkv=2": "nheads=3",
    "attn1:window=1": "'1'",
    "attn1:causal=yes": "'yes'",
    "attn1:recipe=normal:std": "normal:std",
    "attn1:recipe=Normal": "Normal",
    "attn1:b=2,cuq=0+3": "cu_seqlens",
}


@given(case=cases())
def test_a_case_id_parses_back_to_the_case(case: Case) -> None:
    assert Case.parse(case.case_id, origin="hypothesis") == case


@given(case=cases())
def test_a_case_id_is_one_printable_line_without_spaces_or_quotes(case: Case) -> None:
    assert case.case_id.isprintable()
    assert not set(" '\"\\\n") & set(case.case_id)


@pytest.mark.parametrize("text", ["a b", "x,y", "k=v", "c:d", "§/é.npz", "100%"])
def test_text_parameters_survive_the_case_id(text: str) -> None:
    case = Case(problem=AttentionProblem(), recipe=Recipe.of("capture", path=text), seed=0)
    assert Case.parse(case.case_id) == case


@pytest.mark.parametrize(("text", "named"), MALFORMED.items())
def test_a_malformed_id_is_refused_in_one_line_that_shows_the_part(text: str, named: str) -> None:
    with pytest.raises(UsageError) as refusal:
        Case.parse(text)
    assert named in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_defaults_are_left_out_of_the_id() -> None:
    case = Case(problem=AttentionProblem(), recipe=Recipe.of("normal"), seed=7)
    assert case.case_id == "attn1:b=1,sq=16,sk=16,h=1,d=64,dtype=fp32,recipe=normal,seed=7"


def test_origin_is_not_part_of_the_id() -> None:
    one = Case(problem=AttentionProblem(), recipe=Recipe.of("normal"), seed=0, origin="grid")
    assert one.case_id == Case(problem=one.problem, recipe=one.recipe, seed=0, origin="user").case_id
