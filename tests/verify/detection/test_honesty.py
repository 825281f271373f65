"""The false-alarm campaign counts what was judged, and would see an alarm; the rules' duel tells mutants apart."""

from __future__ import annotations

import os
import signal
from functools import partial
from itertools import islice

import pytest

from verify.candidates import load
from verify.case import Case
from verify.detection import honesty
from verify.detection.cases import scoring_cases
from verify.detection.duel import OURS, duel, rings
from verify.detection.questions import SOURCES, Question, questions
from verify.dtypes import STORAGE_DTYPES
from verify.runner import Judge, RunOptions


def _ask(monkeypatch: pytest.MonkeyPatch, candidate: str, case_checks: int = 20) -> honesty.Honesty:
    monkeypatch.setattr(honesty, "CANDIDATES", (candidate,))
    return honesty.honesty_campaign(case_checks=case_checks, jobs=1)


def test_an_honest_candidate_gives_no_alarm_and_every_check_that_was_asked_for_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = _ask(monkeypatch, "numpy_tiled")
    assert found.case_checks == found.by_place.total() >= found.wanted == 20
    assert (found.alarms, found.known, found.ended) == ([], [], "")
    assert {name for name, _, _ in found.by_place} == {"numpy_tiled"}
    assert found.seconds["numpy_tiled"] > 0


def test_a_wrong_candidate_in_its_place_would_give_alarms(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _ask(monkeypatch, "impostor:base2_lse")
    assert "lse" in {alarm.check for alarm in found.alarms}


def test_a_traced_deviation_of_a_library_is_counted_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(honesty, "known_reason", lambda name, problem, finding: "traced")
    judge = Judge(RunOptions(candidates=("impostor:base2_lse",), in_process=True))
    case = Case.parse("attn1:b=1,sq=17,sk=33,h=1,d=16,dtype=fp32,recipe=normal,seed=1")
    found = honesty.answer(judge, Question(source="x", case=case, checks=("lse",)))
    assert ([known.reason for known in found.known], found.alarms) == (["traced"], ())
    assert found.by_place.total() == 1


def test_a_judging_process_that_dies_ends_the_campaign_with_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    # A spawned judging process imports the module anew, so the case itself has to kill it: `die` is unpickled there.
    monkeypatch.setattr(honesty, "questions", lambda seed: iter([_Deadly()] * 9))
    found = _ask(monkeypatch, "numpy_tiled")
    assert found.ended == "a judging process died"
    assert found.case_checks == 0


class _Deadly:
    """Ends the process that unpickles it."""

    def __reduce__(self) -> tuple[object, tuple[int, int]]:
        return _kill_other, (os.getpid(), signal.SIGKILL)


def _kill_other(maker: int, sign: int) -> None:
    assert os.getpid() != maker
    os.kill(os.getpid(), sign)


def test_the_questions_are_the_same_again_and_of_every_source() -> None:
    first, again = (list(islice(questions(3), 40)) for _ in range(2))
    assert first == again
    assert {question.source for question in first} == {source.name for source in SOURCES}
    assert {question.case.problem.dtype for question in first} == set(STORAGE_DTYPES)
    assert list(islice(questions(4), 40)) != first


def test_the_derived_bounds_tell_an_impostor_apart_and_the_honest_candidate_has_no_alarm() -> None:
    ring = list(rings(load("numpy_tiled"), scoring_cases("bf16")[:4]))
    assert all(OURS not in place.alarms for place in ring)
    tally = duel([partial(load, "impostor:no_scale_dk")], ring, jobs=1, timeout_s=60.0)
    assert tally.targets == 1
    assert tally.told_apart[OURS] == tally.rejected[OURS] > 0


def test_a_candidate_with_the_honest_bits_is_no_instance() -> None:
    ring = list(rings(load("numpy_tiled"), scoring_cases("fp32")[:2]))
    assert duel([partial(load, "numpy_tiled")], ring, jobs=1, timeout_s=60.0).instances == 0
