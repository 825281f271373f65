"""Minimised cases are small, still fail in the same way, and cost a bounded number of calls."""

import pytest

from tests.verify.fuzz.support import BUDGET, judge, judged, scores_of
from verify.case import Case
from verify.fuzz import Budget, CaseJudge, FaultKey, Judged, Minimised, fault_keys, minimise
from verify.fuzz.pinned_values import pin, pins
from verify.fuzz.simpler import simpler_problems
from verify.verdict import Finding, Status

LARGE = "attn1:b=2,sq=17,sk=33,h=6,hkv=2,d=40,dtype=fp16,causal=1,softcap=15.0,bias=additive,recipe=normal,seed=5"
KINDS = ("scale_1pct", "last_key_dropped", "wrong_kv_head", "swapped_alignment", "base2_lse", "dropped_delta")


def smallest(name: str, budget: Budget = BUDGET) -> Minimised:
    first = judged(LARGE, f"impostor:{name}")
    return minimise(first, fault_keys(first.findings)[0], judge(), budget=budget)


@pytest.mark.parametrize("name", KINDS)
def test_a_fault_ends_in_a_case_that_fits_in_the_head(name: str) -> None:
    small = smallest(name)
    pinned = pin(small.case)
    assert small.complete
    assert scores_of(small.case.problem) <= 4
    assert pinned is not None
    assert pinned.nonzero <= 4


@pytest.mark.parametrize("name", KINDS)
def test_the_minimised_case_replays_from_its_id(name: str) -> None:
    small = smallest(name)
    again = judged(Case.parse(small.case.case_id).case_id, f"impostor:{name}")
    assert any(key.same_kind(small.key) for key in fault_keys(again.findings))


def test_features_that_play_no_part_are_gone() -> None:
    problem = smallest("scale_1pct").case.problem
    assert (problem.causal, problem.softcap, problem.bias, problem.dtype) == (False, 0.0, "none", "fp32")


def test_a_feature_that_the_fault_needs_stays() -> None:
    assert smallest("swapped_alignment").case.problem.causal
    assert smallest("wrong_kv_head").case.problem.group > 1


def test_the_budget_bounds_the_calls() -> None:
    small = smallest("scale_1pct", Budget(calls=3, seconds=60.0))
    assert small.calls == 3
    assert not small.complete


def test_a_stop_ends_the_search_with_the_best_case_so_far() -> None:
    first = judged(LARGE, "impostor:zeros")
    key = fault_keys(first.findings)[0]
    assert minimise(first, key, judge(), should_stop=lambda: True).case == first.case


def test_an_honest_candidate_has_no_fault_to_minimise() -> None:
    assert fault_keys(judged(LARGE, "numpy_tiled").findings) == ()


def test_the_check_and_status_of_the_fault_never_change() -> None:
    first = judged(LARGE, "impostor:scale_1pct")
    lse = next(key for key in fault_keys(first.findings) if key.check == "lse")
    small = minimise(first, lse, judge(), budget=BUDGET)
    assert [key.check for key in fault_keys(small.judged.findings)] == ["lse"]


def test_simpler_problems_never_return_the_problem_itself() -> None:
    problem = Case.parse(LARGE).problem
    steps = list(simpler_problems(problem))
    assert len(steps) > 20
    assert problem not in steps


def test_same_kind_ignores_the_pattern_alone() -> None:
    key = FaultKey(check="forward", status=Status.NUMERICAL, tensor="out", pattern="all zeros")
    assert key.same_kind(FaultKey(check="forward", status=Status.NUMERICAL, tensor="out"))
    assert not key.same_kind(FaultKey(check="forward", status=Status.NONFINITE, tensor="out"))


class CrashingJudge(CaseJudge):
    """Every case with more than two keys ends the process of the candidate."""

    def judge(self, case: Case, candidate: str, *, only: str | None = None) -> Judged:
        """A crash, or nothing at all."""
        crash = Finding(check="contract", status=Status.CRASH, reasons=("SIGSEGV: address 0",))
        return Judged(case=case, candidate=candidate, findings=(crash,) if case.problem.seqlen_k > 2 else ())


def test_a_crash_is_made_small_with_few_calls() -> None:
    crashing = CrashingJudge()
    first = crashing.judge(Case.parse(LARGE), "numpy_tiled")
    small = minimise(first, fault_keys(first.findings)[0], crashing)
    assert small.case.problem.seqlen_k == 3
    assert small.case.problem.nheads == 1
    assert small.calls <= Budget.of(Status.CRASH).calls < Budget().calls


def test_values_too_many_to_write_out_are_written_as_integers() -> None:
    first = judged("attn1:b=1,sq=20,sk=20,h=1,d=64,dtype=fp32,recipe=normal,seed=3", "impostor:zeros")
    assert pin(first.case) is None
    assert next(pins(first.case)).case.recipe.name == "pinned"
