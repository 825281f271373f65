"""A kill counts only where the honest candidate passes; a candidate that dies or does not build is told apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from verify.candidate import Call, Candidate
from verify.candidates import load
from verify.case import features
from verify.checks import DEFAULT
from verify.checks.comparison import LSE
from verify.checks.contract import CONTRACT
from verify.detection.bench import Prepared, prepare
from verify.detection.campaign import FULL, PROFILES, QUICK, Stage, honest_name, run_campaign, targets
from verify.detection.cases import MOST_PAIRS, narrowed, scoring_cases
from verify.detection.cheats import build_cheat, cheat_names
from verify.detection.hunt import hunt
from verify.verdict import Status

CASES = scoring_cases("fp32")


@pytest.fixture(scope="module")
def bench() -> list[Prepared]:
    return list(prepare(load("numpy_tiled"), CASES[:6], DEFAULT))


@cache
def _chunk(start: int) -> list[Prepared]:
    return list(prepare(load("numpy_tiled"), CASES[start : start + 20], DEFAULT))


def _hunt(build: Callable[[], Candidate], bench: list[Prepared], **options: Any) -> Any:
    return hunt(build, "x", bench, DEFAULT, lambda note: None, **{"all_kills": False, **options})


def test_the_honest_candidate_survives_and_an_impostor_is_killed(bench: list[Prepared]) -> None:
    assert _hunt(lambda: load("numpy_tiled"), bench).kill is None
    found = _hunt(lambda: load("impostor:base2_lse"), bench)
    assert (found.kill.check, found.kill.status, found.cases) == ("lse", Status.NUMERICAL, 1)
    assert found.kill.causes[0] == "lse"


def test_a_failure_that_the_honest_candidate_shares_is_no_kill(bench: list[Prepared]) -> None:
    shared = [replace(p, honest=dict.fromkeys(p.honest, Status.NUMERICAL)) for p in bench]
    assert _hunt(lambda: load("impostor:zeros"), shared).kill is None


def test_all_kills_are_listed_when_asked_for(bench: list[Prepared]) -> None:
    found = _hunt(lambda: load("impostor:scale_1pct"), bench, all_kills=True)
    assert len({case_id for case_id, _, _ in found.kills}) > 1
    assert found.cases == 1


@pytest.mark.parametrize("name", cheat_names())
def test_every_cheat_is_killed(name: str) -> None:
    """Killed by some case of the quick grid: later ones are tried only while it lives."""
    for start in range(0, len(CASES), 20):
        if _hunt(lambda: build_cheat(name), _chunk(start)).kill is not None:
            return
    pytest.fail(f"{name} survives")


def test_narrowing_changes_the_dtype_and_the_head_dims_only() -> None:
    for case in scoring_cases("bf16"):
        problem = case.problem
        assert problem.dtype == "bf16"
        assert max(problem.head_dim, problem.head_dim_v) <= 32
        assert problem.batch * problem.nheads * problem.seqlen_q * problem.seqlen_k <= MOST_PAIRS
        assert narrowed(case, "bf16") == case


def test_every_feature_that_the_kernels_take_is_among_the_cases() -> None:
    found = {feature for case in CASES for feature in features(case.problem)}
    assert found >= load("cuda_tiled").contract.capabilities.features


def test_all_profiles_and_targets_are_known() -> None:
    assert PROFILES == {"quick": QUICK, "full": FULL}
    assert len(targets("full", "impostor:")) >= 25
    assert set(targets("quick", "")) < set(targets("full", ""))
    assert honest_name("impostor:zeros") == "numpy_tiled"
    assert honest_name("mutant:textbook_delta_dropped") == "cuda_textbook"


def test_a_cheat_answers_like_the_honest_candidate_on_its_first_plain_call(bench: list[Prepared]) -> None:
    case, arrays = bench[0].case, bench[0].facts.inputs.arrays
    call = Call(problem=case.problem, arrays=arrays, backward=True)
    honest = load("numpy_tiled").run(call).outputs["out"].tobytes()
    assert build_cheat("cached_by_shape").run(call).outputs["out"].tobytes() == honest


def test_a_later_stage_asks_only_what_no_stage_asked_alike() -> None:
    stages = [
        Stage(name="one", dtype="fp32", n_cases=2, checks=(CONTRACT,)),
        Stage(name="two", dtype="fp32", n_cases=2, checks=(CONTRACT,)),
        Stage(name="other checks", dtype="fp32", n_cases=2, checks=(CONTRACT, LSE)),
    ]
    asked: dict[str, list[str]] = {}

    def note(stage: Stage, honest: str, bench: list[Prepared]) -> None:
        asked[stage.name] = [prepared.case.case_id for prepared in bench]

    run_campaign(["impostor:no_scale_dk"], stages, jobs=1, on_bench=note)
    assert not set(asked["one"]) & set(asked["two"])
    assert asked["other checks"] == asked["one"]
    assert all(len(ids) == 2 for ids in asked.values())
