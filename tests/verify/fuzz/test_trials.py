"""Trials of the fuzzing: which mutants they take is a rule, and what they report is what the campaign found."""

from collections import Counter

from verify.case import Case
from verify.detection.mutants import catalogue
from verify.fuzz.judging import COSTLY_EVERY, EVERY_CASE, TICKETS, CaseJudge
from verify.fuzz.trials import MAX_NONZERO, MAX_SCORES, Trial, fuzz_trials, trial_mutants, trials_summary


def test_mutants_that_count_are_taken_in_turn_from_all_kinds() -> None:
    kinds = {mutant.kind for mutant in catalogue().values() if mutant.counted}
    first = trial_mutants(len(kinds))
    assert {catalogue()[name].kind for name in first} == kinds
    assert trial_mutants(40)[: len(kinds)] == first
    assert len(set(trial_mutants(40))) == 40
    assert all(catalogue()[name].counted for name in trial_mutants(1000))


def test_a_pattern_leaves_the_mutants_whose_name_contains_it() -> None:
    assert all("scale" in name for name in trial_mutants(5, "scale"))


def test_a_summary_counts_what_was_found_and_what_is_small() -> None:
    small = Trial(mutant="a", kind="k", seconds=2.0, examples=1, rows=1, keys=MAX_SCORES, nonzero=MAX_NONZERO)
    large = Trial(mutant="b", kind="k", seconds=4.0, examples=1, rows=1, keys=MAX_SCORES + 1, nonzero=0)
    endless = Trial(mutant="c", kind="k", seconds=9.0, examples=1, rows=1, keys=1, nonzero=None)
    missed = Trial(mutant="d", kind="k", seconds=None, examples=500)
    summary = trials_summary([small, large, endless, missed])
    assert [trial["small"] for trial in summary["trials"]] == [True, False, False, False]
    assert {name: summary[name] for name in ("tried", "found", "median_seconds", "largest_seconds", "small")} == {
        "tried": 4, "found": 3, "median_seconds": 4.0, "largest_seconds": 9.0, "small": 1,
    }  # fmt: skip


def test_a_trial_finds_its_mutant_from_a_cold_start_and_makes_it_small() -> None:
    (trial,) = fuzz_trials(["causal_strict"], jobs=1)
    assert trial.seconds is not None
    assert trial.is_small
    assert Case.parse(trial.case_id).problem.causal


def test_checks_that_call_again_run_the_more_often_the_fewer_calls_they_make() -> None:
    case = Case.parse("attn1:b=1,sq=3,sk=3,h=1,d=4,dtype=fp32,recipe=normal,seed=0")
    judge = CaseJudge(in_process=True)
    chosen = Counter(
        check.name
        for seed in range(8000)
        for check in judge._checks_of(Case(problem=case.problem, recipe=case.recipe, seed=seed))
        if check.name not in EVERY_CASE
    )
    assert 0.9 < sum(chosen.values()) * COSTLY_EVERY / 8000 < 1.1
    assert chosen["determinism"] > chosen["invariance"] > chosen["metamorphic"] > 0
    assert TICKETS > 8000
