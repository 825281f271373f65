"""What the page on fuzzing promises to people who write tests of their own."""

import pytest
from hypothesis import given, settings

from verify.candidates import load
from verify.case import Case
from verify.errors import UsageError
from verify.fuzz import check_case
from verify.strategies import cases
from verify.verdict import Status

DECLARED = load("numpy_tiled").contract.capabilities


@settings(max_examples=10)
@given(case=cases(capabilities=DECLARED, features={"causal", "gqa"}, max_seqlen=16))
def test_an_honest_kernel_passes_drawn_cases(case: Case) -> None:
    assert check_case(case, "numpy_tiled", checks=("forward", "lse")).status is Status.PASS


def test_a_drawn_case_shrinks_to_the_feature_that_the_fault_needs() -> None:
    @settings(max_examples=60, derandomize=True, database=None)
    @given(case=cases(capabilities=DECLARED, features={"causal", "gqa"}, max_seqlen=8, max_batch=2))
    def fails(case: Case) -> None:
        failing.append(case)
        assert check_case(case, "impostor:wrong_kv_head", checks=("forward",)).status is Status.PASS
        failing.pop()

    failing: list[Case] = []
    with pytest.raises(AssertionError):
        fails()
    problem = failing[-1].problem
    assert problem.group > 1
    assert (problem.batch, problem.causal) == (1, False)


def test_an_unknown_candidate_is_refused() -> None:
    with pytest.raises(UsageError, match="candidate="):
        check_case("attn1:b=1,sq=1,sk=1,h=1,d=8,dtype=fp32", "no_such_kernel")


def test_a_verdict_cannot_be_taken_for_a_truth_value() -> None:
    verdict = check_case("attn1:b=1,sq=1,sk=1,h=1,d=8,dtype=fp32", "impostor:zeros", checks=("forward",))
    with pytest.raises(TypeError, match="status"):
        bool(verdict)
