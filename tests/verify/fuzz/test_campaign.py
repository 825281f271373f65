"""Campaigns find faults, tell them apart, leave honest candidates alone, and draw from all their sources."""

from pathlib import Path

import pytest

from tests.verify.fuzz.support import campaign, scores_of
from verify.candidates import load
from verify.case import Case
from verify.fuzz import Budget, judging, lane
from verify.fuzz.lane import uniform_case
from verify.fuzz.log import CampaignLog, Found, Progress, Started, log_path
from verify.fuzz.schedules import schedule_variants, simpler_schedules

SMALL = Budget(calls=150, seconds=10.0)


@pytest.mark.parametrize("name", ["scale_1pct", "mask_off_by_one", "group_not_summed", "stale_output", "wrong_shape"])
def test_a_fault_is_found_and_made_small(tmp_path: Path, name: str) -> None:
    state = campaign(tmp_path, f"impostor:{name}")
    (fault,) = state.faults.values()
    assert fault.reduced is not None
    assert scores_of(Case.parse(fault.case_id).problem) <= 64


def test_an_honest_candidate_has_no_fault_and_its_examples_are_counted(tmp_path: Path) -> None:
    state = campaign(tmp_path, "numpy_tiled", examples=60, seconds=None)
    assert state.faults == {}
    assert state.examples == 60
    assert 0 < state.worst_ratio <= 1
    assert 0 < state.coverage.share(3) < state.coverage.share(2) < 1


def test_the_same_seed_judges_the_same_cases(tmp_path: Path) -> None:
    ends = [campaign(tmp_path / name, "numpy_tiled", examples=30, seconds=None) for name in ("first", "second")]
    assert ends[0].coverage.covered == ends[1].coverage.covered
    assert ends[0].worst_case == ends[1].worst_case


def test_hypothesis_finds_and_shrinks_where_grid_and_stream_have_run_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane, "UNIFORM_BATCH", 0)
    _pretend_done(tmp_path, "impostor:wrong_kv_head")
    state = campaign(tmp_path, "impostor:wrong_kv_head", minimise_budget=SMALL)
    (fault,) = state.faults.values()
    assert fault.found.source == "hypothesis"
    assert Case.parse(fault.case_id).problem.group > 1


def test_distinct_faults_are_told_apart_and_counted(tmp_path: Path) -> None:
    state = campaign(tmp_path, "impostor:base2_lse", keep_going=True, examples=40, minimise_budget=SMALL)
    assert {fault.key.check for fault in state.faults.values()} == {"lse"}
    assert len(state.faults) <= 2
    assert sum(fault.count for fault in state.faults.values()) > 10


def test_a_known_deviation_is_written_down_and_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case.parse("attn1:b=2,sq=5,sk=7,h=2,d=8,dtype=fp32,recipe=normal,seed=1")
    monkeypatch.setattr(judging, "known_reason", lambda candidate, problem, finding: "known: traced")
    state = campaign(tmp_path, "impostor:zeros", regressions=((case, "forward"),), examples=8, minimise_budget=SMALL)
    assert state.examples == 8
    assert all(fault.key.known for fault in state.faults.values())
    assert sum(fault.count for fault in state.faults.values()) >= 7


def test_regressions_are_tried_first(tmp_path: Path) -> None:
    case = Case.parse("attn1:b=1,sq=1,sk=2,h=1,d=1,dtype=fp32,recipe=pinned:k=0~1:q=1:v=0~1,seed=0")
    (fault,) = campaign(tmp_path, "impostor:scale_1pct", regressions=((case, "forward"),)).faults.values()
    assert (fault.found.source, fault.found.examples) == ("regression", 1)


def test_the_grid_gives_way_to_the_other_sources_in_turn(tmp_path: Path) -> None:
    campaign(tmp_path, "numpy_tiled", examples=40, seconds=None)
    lines = list(CampaignLog(log_path(tmp_path, "numpy_tiled")).new_lines())
    last = [line for line in lines if isinstance(line, Progress)][-1]
    assert min(last.grid, last.uniform, last.rounds) > 0


def test_the_uniform_stream_asks_only_what_is_declared() -> None:
    declared = load("torch_flash").contract.capabilities
    found = [uniform_case(declared, seed) for seed in range(30)]
    assert all(case is None or declared.refusal(case.problem) is None for case in found)
    assert sum(case is not None for case in found) > 15
    assert uniform_case(declared, 3) == uniform_case(declared, 3)


def test_schedules_are_drawn_for_this_projects_kernels_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ATTN_VERIFY_DEVICE", raising=False)
    assert {"cuda_tiled", "cuda_tiled:reversed", "cuda_tiled:random1"} <= set(schedule_variants("cuda_tiled"))
    assert schedule_variants("torch_math") == ("torch_math",)
    assert schedule_variants("cuda_tiled:nofma") == ("cuda_tiled:nofma",)
    assert simpler_schedules("cuda_tiled:random3") == ("cuda_tiled", "cuda_tiled:reversed")


def _pretend_done(folder: Path, candidate: str) -> None:
    """A log by which the lane has been through the grid."""
    log = CampaignLog(log_path(folder, candidate))
    log.append(Started(candidate=candidate, seed=0, jobs=1, axes_version=0))
    done = {"examples": 0, "seconds": 0.0, "worst_ratio": 0.0, "worst_case": "", "new": [], "counts": {}}
    log.append(Progress(lane=0, seed=0, grid=10_000, uniform=0, rounds=0, **done))  # type: ignore[arg-type]
    log.close()


def test_a_found_fault_is_in_the_log_before_it_is_made_small(tmp_path: Path) -> None:
    campaign(tmp_path, "impostor:zeros")
    kinds = [type(line).__name__ for line in CampaignLog(log_path(tmp_path, "impostor:zeros")).new_lines()]
    assert kinds.index(Found.__name__) < kinds.index("Reduced")
