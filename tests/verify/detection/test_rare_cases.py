"""What few candidates take: a bias of -inf, gaps within head vectors, a short sequence before a longer one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from verify.candidates import load
from verify.case import Case, features
from verify.checks import DEFAULT
from verify.checks.case_run import CaseFacts
from verify.detection.bench import prepare
from verify.detection.cases import narrowed
from verify.detection.hunt import hunt
from verify.detection.mutant_candidate import SmallKernel
from verify.detection.mutants import catalogue
from verify.grid.traps import rare_specs
from verify.inputs import make_inputs

CASES = tuple(Case(problem=problem, recipe=recipe, seed=1) for problem, recipe in rare_specs())
HIDING = next(case for case in CASES if case.problem.bias_hidden and case.problem.dtype == "fp32")


def test_the_rare_features_are_all_there() -> None:
    assert {feature for case in CASES for feature in features(case.problem)} >= {"strided", "bias_minus_infinity"}
    assert any(case.problem.is_ragged and case.problem.lengths(0)[1] < case.problem.lengths(1)[1] for case in CASES)


def test_rows_that_a_bias_hides_as_a_whole_give_zero_minus_infinity_and_no_gradient() -> None:
    facts = CaseFacts(case=HIDING, inputs=make_inputs(HIDING))
    expected = facts.reference(backward=True, with_dlse=False)
    blind = np.isneginf(facts.inputs.arrays["bias"]).all(axis=-1)
    assert blind.any()
    assert (np.isneginf(expected["lse"]) == blind).all()
    for name in ("out", "dq"):
        assert (expected[name].swapaxes(1, 2)[blind] == 0).all()
    assert (expected["dbias"][np.isneginf(facts.inputs.arrays["bias"])] == 0).all()


@pytest.mark.parametrize("name", ["numpy_tiled", "numpy_tiled:eager", "cuda_tiled", "cuda_textbook"])
def test_honest_candidates_pass(name: str) -> None:
    small = [narrowed(case, case.problem.dtype) for case in CASES]
    bench = list(prepare(load(name), small, DEFAULT))
    assert len(bench) == len(CASES)
    assert [(p.case.case_id, c, s) for p in bench for c, s in p.honest.items() if s.is_failure] == []


@pytest.mark.parametrize(("name", "expected"), [("torch_math", 7), ("torch_flash", 4)])
def test_torch_hides_what_a_bias_of_minus_infinity_hides(name: str, expected: int) -> None:
    """Flash refuses gaps within a head vector, and says so in its contract; math takes them."""
    pytest.importorskip("torch")
    bench = list(prepare(load(name), CASES, DEFAULT))
    assert len(bench) == expected
    assert [(p.case.case_id, c, s) for p in bench for c, s in p.honest.items() if s.is_failure] == []


def test_a_candidate_that_declares_neither_is_not_asked() -> None:
    plain = replace(
        load("numpy_tiled").contract.capabilities, layouts=frozenset({"bshd"}), features=frozenset({"bias"})
    )
    assert plain.refusal(HIDING.problem) == "bias_minus_infinity not declared"
    assert plain.refusal(CASES[0].problem) == "layout strided not declared"


@pytest.mark.parametrize(
    "name",
    ["mutant:last_axis_assumed_dense", "mutant:minus_infinity_bias_visible", "mutant:key_extent_from_longest"],
)
def test_the_mutants_that_only_such_cases_reach_are_killed(name: str) -> None:
    kernel = catalogue()[name.removeprefix("mutant:")].kernel
    fp32 = [narrowed(case, "fp32") for case in CASES if case.problem.dtype == "fp32"]
    bench = list(prepare(SmallKernel(kernel), fp32, DEFAULT))
    found = hunt(lambda: load(name), name, bench, DEFAULT, lambda note: None, all_kills=False)
    assert found.kill is not None


def test_an_impostor_that_gives_hidden_rows_the_mean_of_v_is_killed() -> None:
    bench = list(prepare(load("numpy_tiled"), [narrowed(HIDING, "fp32")], DEFAULT))
    name = "impostor:dead_rows_mean"
    assert hunt(lambda: load(name), name, bench, DEFAULT, lambda note: None, all_kills=False).kill is not None
