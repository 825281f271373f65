"""The conformance table: what a failing case is put down to, and that the page follows from the records alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from verify.case import Case, features
from verify.commands.conformance_table import (
    BLIND_ROW,
    EMPTY,
    SPECIAL,
    case_features,
    conformance_page,
    conformance_table_command,
    judge_features,
)
from verify.errors import UsageError
from verify.record import Environment, Record, encode_record
from verify.verdict import Finding, Status, Verdict

PLAIN = "attn1:b=1,sq=4,sk=4,h=1,d=8,dtype=fp32"
CAUSAL = PLAIN + ",causal=1"
CAPPED = PLAIN + ",softcap=2.0"
BOTH = PLAIN + ",causal=1,softcap=2.0"
BLIND = "attn1:b=1,sq=4,sk=2,h=1,d=8,dtype=fp32,causal=1"
HALF = "attn1:b=1,sq=4,sk=4,h=1,d=8,dtype=fp16"


def record(
    case_id: str, status: Status, *, candidate: str = "numpy_tiled", special: Status = Status.UNSUPPORTED
) -> Record:
    case = Case.parse(case_id)
    finding = Finding(check="forward", status=status, reasons=(f"reason of {case_id}",))
    hidden = Finding(check="special_values", status=special, reasons=("nan in q: lost",))
    return Record(
        run_id="r",
        started_at="2026-01-01T00:00:00.000+00:00",
        case_id=case.case_id,
        origin=case.origin,
        features=tuple(features(case.problem)),
        recipe=case.recipe.name,
        candidate=candidate,
        source_hash="0" * 12,
        environment=Environment(python="3.11", platform="linux"),
        route=None,
        verdict=Verdict.of((finding, hidden)),
    )


def states(*pairs: tuple[str, Status]) -> dict[str, str]:
    return judge_features([record(case_id, status) for case_id, status in pairs])[0]


def test_failure_belongs_to_the_feature_that_always_fails() -> None:
    found = states((PLAIN, Status.PASS), (CAUSAL, Status.PASS), (CAPPED, Status.NUMERICAL), (BOTH, Status.NUMERICAL))
    assert (found["softcap"], found["causal"], found["fp32"]) == ("deviates", "pass", "pass")


def test_row_without_keys_is_a_feature_of_its_own() -> None:
    found = states((CAUSAL, Status.PASS), (BLIND, Status.NONFINITE))
    assert (found[BLIND_ROW], found["causal"]) == ("deviates", "pass")


def test_a_lost_nan_is_a_deviation_of_its_own_and_of_no_feature() -> None:
    records = [record(text, Status.PASS, special=Status.NONFINITE) for text in (PLAIN, CAUSAL)]
    found, (deviation,) = judge_features(records)
    assert (found[SPECIAL], found["causal"], found["fp32"]) == ("deviates", "pass", "pass")
    assert (deviation.feature, deviation.cases, deviation.reason) == (SPECIAL, 2, "nan in q: lost")


def test_dtype_explains_what_fails_everywhere_in_it() -> None:
    assert states((PLAIN, Status.PASS), (HALF, Status.CRASH))["fp16"] == "deviates"


@pytest.mark.parametrize(
    ("status", "state"),
    [(Status.REFUSED, "refuses"), (Status.UNSUPPORTED, "undeclared"), (Status.POWERLESS, "pass")],
)
def test_states_follow_the_statuses(status: Status, state: str) -> None:
    found = states((PLAIN, Status.PASS), (CAPPED, status))
    assert found["softcap"] == state
    assert found["sink"] == "not reached"


def test_smallest_failing_case_is_shown() -> None:
    large = CAPPED.replace("sq=4", "sq=9")
    (deviation,) = judge_features([record(case_id, Status.NUMERICAL) for case_id in (large, CAPPED)])[1]
    assert (deviation.smallest, deviation.cases) == (Case.parse(CAPPED).case_id, 2)
    assert deviation.reason == f"reason of {CAPPED}"


@pytest.mark.parametrize(
    ("case_id", "expected"),
    [
        (PLAIN, {"fp32", "plain"}),
        (BLIND, {"fp32", "causal", BLIND_ROW}),
        ("attn1:b=1,sq=0,sk=4,h=1,d=8,dtype=fp16", {"fp16", "plain", EMPTY}),
        ("attn1:b=2,sq=3,sk=4,h=1,d=8,dtype=fp32,lenk=0+4", {"fp32", "lengths", BLIND_ROW}),
        ("attn1:b=1,sq=4,sk=4,h=1,d=8,dtype=fp32,layout=sliced", {"fp32", "plain"}),
    ],
)
def test_features_of_a_case_include_what_its_data_does(case_id: str, expected: set[str]) -> None:
    assert case_features(case_id) == expected


def test_page_is_the_same_for_the_same_records_and_names_every_candidate(tmp_path: Path) -> None:
    records = [record(PLAIN, Status.PASS), record(CAPPED, Status.NUMERICAL, candidate="torch_math")]
    journal = tmp_path / "records-x.jsonl"
    journal.write_bytes(b"".join(map(encode_record, records)))
    conformance_table_command(journals=(journal,), out=tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    assert page == conformance_page(records)
    assert "| softcap | **deviates** | ? |" in page
    assert f"repro '{Case.parse(CAPPED).case_id}' --candidate torch_math" in page
    assert "- `flash_attn_2`: " in page


def test_declared_convention_is_shown_as_a_difference() -> None:
    records = [record(PLAIN, Status.PASS, candidate="jax_attention")]
    page = conformance_page([*records, record(BLIND, Status.UNSUPPORTED, candidate="jax_attention")])
    assert f"| {BLIND_ROW} | differs |" in page
    assert f"- `jax_attention`, {BLIND_ROW}: Not documented." in page


def test_declared_feature_without_a_judged_case_is_no_undeclared_one() -> None:
    unsupported = [record(case_id, Status.UNSUPPORTED, candidate="jax_attention") for case_id in (CAPPED, HALF)]
    lengths = record(PLAIN + ",lenk=3", Status.UNSUPPORTED, candidate="jax_attention")
    page = conformance_page([record(PLAIN, Status.PASS, candidate="jax_attention"), *unsupported, lengths])
    for row in ("| lengths | ? |", "| window | ? |", "| softcap | - |", "| fp16 | - |", "| paged | - |"):
        assert row in page


def test_no_journal_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="records-"):
        conformance_table_command(journals=(), out=tmp_path / "page.md")
