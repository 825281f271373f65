"""The score counts what it says: equivalent and below-rounding mutants apart, survivors named, page complete."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from verify.commands import selftest
from verify.commands.selftest import EFFORTS, _is_wrong, selftest_command
from verify.detection import honesty
from verify.detection.bench import FalseAlarm
from verify.detection.duel import RULE_NAMES, Tally
from verify.detection.honesty import Honesty
from verify.detection.hunt import Hunt, Kill
from verify.detection.mutants import catalogue
from verify.detection.page import markdown
from verify.detection.score import duel_summary, honesty_summary, score
from verify.errors import UsageError
from verify.verdict import Status

EQUIVALENT = next(m.name for m in catalogue().values() if m.equivalent)
BELOW = next(m.name for m in catalogue().values() if m.below_rounding)


def killed(name: str, *causes: str) -> Hunt:
    kill = Kill(case_id="attn1:x", check="lse", status=Status.NUMERICAL, reason="lse: wrong", causes=causes)
    return Hunt(name=name, stage="fp32", kill=kill, cases=1, seconds=1.0)


HUNTS = (
    killed("mutant:lse_in_base_two", "tail", "lse"),
    killed("mutant:delta_dropped", "tail"),
    Hunt(name="mutant:causal_top_left", stage="fp32", cases=9),
    Hunt(name=f"mutant:{EQUIVALENT}", stage="fp32", cases=9),
    killed(f"mutant:{BELOW}"),
    killed("impostor:zeros"),
)


def summary() -> dict[str, object]:
    return {"profile": "quick", "seconds": 1.0, "parts": {}, "hunts": {**score(HUNTS), "not_hunted": []}}


def test_only_what_can_be_seen_counts() -> None:
    mutants = score(HUNTS)["mutants"]
    assert (mutants["tried"], mutants["counted"], mutants["killed"]) == (5, 3, 2)
    assert mutants["below_rounding"] == {"tried": 1, "killed": 1, "names": {BELOW: True}}
    assert [(e["name"], e["killed"]) for e in mutants["equivalent"]] == [(EQUIVALENT, False)]


def test_survivors_and_missed_causes_are_named() -> None:
    result = score(HUNTS)
    assert [s["name"] for s in result["survivors"]] == ["mutant:causal_top_left"]
    assert (result["causes"]["first"], result["causes"]["among_three"], result["causes"]["explained"]) == (0, 1, 2)
    assert [m["name"] for m in result["causes"]["missed"]] == ["delta_dropped"]


def test_the_summary_is_json_and_every_result_is_on_the_page() -> None:
    page = markdown(json.loads(json.dumps(summary())))
    assert all(found.name in page for found in HUNTS)
    assert "| killed | lse | NUMERICAL | 1 | 1.0 | attn1:x |" in page
    assert "| lse | 3 |" in page


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({}, False),
        ({"mutants": {"counted": 100, "share_killed": 0.8, "broken": []}}, True),
        ({"mutants": {"counted": 100, "share_killed": 0.9, "broken": [{"name": "m"}]}}, True),
        ({"impostors": {"tried": 2, "killed": 1}}, True),
        ({"not_hunted": ["impostor:zeros"]}, True),
    ],
)
def test_too_few_kills_a_live_impostor_or_a_broken_or_missing_target_is_wrong(change: dict, wrong: bool) -> None:
    right = {
        "mutants": {"counted": 100, "share_killed": 0.9, "broken": []},
        "impostors": {"tried": 2, "killed": 2},
        "not_hunted": [],
    }
    assert _is_wrong({"hunts": {**right, **change}}, EFFORTS["quick"]) is wrong


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({}, False),
        ({"known_deviations": [{}]}, False),
        ({"false_alarms": [{}]}, True),
        ({"ended": "interrupted"}, True),
        ({"case_checks": 6}, True),
    ],
)
def test_a_false_alarm_or_too_few_honest_case_checks_is_wrong(change: dict, wrong: bool) -> None:
    right = {"false_alarms": [], "known_deviations": [], "ended": "", "case_checks": 7, "wanted": 7}
    assert _is_wrong({"honesty": {**right, **change}}, EFFORTS["quick"]) is wrong


def test_false_alarms_known_deviations_and_rules_reach_the_page() -> None:
    alarm = FalseAlarm(candidate="torch_math", case_id="attn1:y", check="lse", status=Status.NUMERICAL, reason="r")
    found = Honesty(wanted=9, case_checks=7, alarms=[alarm], known=[replace(alarm, reason="traced")], ended="why")
    found.by_place[("torch_math", "fp32", "lse")] = 7
    tally = Tally(
        instances=10, targets=2, rejected=dict.fromkeys(RULE_NAMES, 5), told_apart=dict.fromkeys(RULE_NAMES, 4)
    )
    rules = {"bf16": duel_summary(tally, {RULE_NAMES[0]: 1}, 3)}
    page = markdown({**summary(), "honesty": honesty_summary(found), "rules": rules})
    assert "false alarms: 1 in 7" in page
    assert "ended before the 9 wanted: why" in page
    assert "| torch_math | lse | traced | 1 |" in page
    assert "| fixed limits | 50 % | 40 % | 0/2 | 1/3 |" in page


def test_parts_of_two_commands_are_put_together_and_parts_of_other_sources_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(**options: object) -> dict[str, object]:
        selftest_command(profile="quick", jobs=1, out=tmp_path, as_json=False, **options)  # type: ignore[arg-type]
        found: dict[str, object] = json.loads((tmp_path / "selftest.json").read_text())
        return found

    monkeypatch.setattr(honesty, "CANDIDATES", ("numpy_tiled",))
    pattern = "impostor:zeros"
    assert set(run(pattern=pattern, only=("hunts",))["parts"]) == {"hunts"}  # type: ignore[call-overload]
    joined = run(pattern=pattern, only=("honesty",), honest_checks=5)
    assert set(joined["parts"]) == {"hunts", "honesty"}  # type: ignore[call-overload]
    monkeypatch.setattr(selftest, "sources_digest", lambda: "other")
    assert set(run(pattern=pattern, only=("honesty",), honest_checks=5)["parts"]) == {"honesty"}  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("profile", "huge"),
        ("jobs", 0),
        ("pattern", "no mutant has this text in its name"),
        ("only", ("hunt",)),
        ("seed", -1),
        ("honest_checks", 0),
    ],
)
def test_bad_usage_is_refused(field: str, value: object, tmp_path) -> None:  # type: ignore[no-untyped-def]
    options = {"profile": "quick", "pattern": "", "jobs": 1, "out": tmp_path, "as_json": False, field: value}
    with pytest.raises(UsageError):
        selftest_command(**options)  # type: ignore[arg-type]
