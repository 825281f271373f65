"""The false-alarm campaign counts what was judged, and would see an alarm; the rules' duel tells mutants apart."""

from __future__ import annotations

from functools import partial

import pytest

from verify.candidates import load
from verify.detection import honesty
from verify.detection.cases import scoring_cases
from verify.detection.duel import OURS, duel, rings


def _campaign(monkeypatch: pytest.MonkeyPatch, candidate: str) -> honesty.Honesty:
    monkeypatch.setattr(honesty, "CANDIDATES", (candidate,))
    return honesty.honesty_campaign(n_cases=2, grid="quick", checks=("forward", "lse"), jobs=1)


def test_an_honest_candidate_gives_no_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _campaign(monkeypatch, "numpy_tiled")
    assert found.case_checks == 2 * 2 * 3
    assert found.alarms == ()
    assert found.by_place[("numpy_tiled", "bf16", "lse")] == 2


def test_a_wrong_candidate_in_its_place_would_give_alarms(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _campaign(monkeypatch, "impostor:base2_lse")
    assert {alarm.check for alarm in found.alarms} == {"lse"}


def test_the_derived_bounds_tell_an_impostor_apart_and_the_honest_candidate_has_no_alarm() -> None:
    ring = list(rings(load("numpy_tiled"), scoring_cases("bf16")[:4]))
    assert all(OURS not in place.alarms for place in ring)
    tally = duel([partial(load, "impostor:no_scale_dk")], ring, jobs=1, timeout_s=60.0)
    assert tally.targets == 1
    assert tally.told_apart[OURS] == tally.rejected[OURS] > 0


def test_a_candidate_with_the_honest_bits_is_no_instance() -> None:
    ring = list(rings(load("numpy_tiled"), scoring_cases("fp32")[:2]))
    assert duel([partial(load, "numpy_tiled")], ring, jobs=1, timeout_s=60.0).instances == 0
