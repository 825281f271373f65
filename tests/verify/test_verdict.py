"""Statuses, verdicts, and their round trip through a record and a journal."""

import math
from pathlib import Path

import pytest

from verify.candidate import Route
from verify.errors import UsageError
from verify.journal import Journal, read_records
from verify.record import Environment, Record, decode_record, encode_record
from verify.verdict import Comparison, Finding, Status, Verdict, WorstElement


def _comparison(value: float = 0.5) -> Comparison:
    worst = WorstElement(index=(0, 1), tile=(0, 0), got=value, expected=-math.inf, bound=1.0, ratio=value)
    return Comparison(
        tensor="lse", shape_ok=True, dtype_ok=True, n_total=4, n_exceeding=0, nan_mismatch=0, posinf_mismatch=0,
        neginf_mismatch=0, nan_count=0, inf_count=0, max_abs=value, max_rel=value, rms=value, rel_l2=value, gain=1.0,
        bias=0.0, cosine=1.0, max_ulp=value, max_bound_ratio=value, saturated=0.0, fixed_limits_ok=True,
        worst=(worst,), error_map=((value,),), map_axes=("head", "row"),
    )  # fmt: skip


def _record(value: float = 0.5) -> Record:
    finding = Finding(check="lse", status=Status.PASS, comparisons=(_comparison(value),))
    return Record(
        run_id="r", started_at="2026-01-01T00:00:00.000+00:00", case_id="attn1:b=1", origin="grid", features=(),
        recipe="normal", candidate="c", source_hash="0", environment=Environment(python="3", platform="x"),
        route=Route(backend="flash"), verdict=Verdict.of((finding,)),
    )  # fmt: skip


@pytest.mark.parametrize("value", [0.5, math.inf, -math.inf])
def test_record_survives_json(value: float) -> None:
    assert decode_record(encode_record(_record(value))) == _record(value)


def test_nan_survives_json() -> None:
    back = decode_record(encode_record(_record(math.nan)))
    assert math.isnan(back.verdict.findings[0].comparisons[0].max_abs)


def test_verdict_has_no_truth_value() -> None:
    with pytest.raises(TypeError, match="no truth value"):
        bool(Verdict.of(()))


def test_no_finding_is_no_pass() -> None:
    assert Verdict.of(()).status is Status.POWERLESS


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ([Status.PASS, Status.UNSUPPORTED], Status.PASS),
        ([Status.UNSUPPORTED], Status.UNSUPPORTED),
        ([Status.PASS, Status.POWERLESS], Status.POWERLESS),
        ([Status.PASS, Status.HANG, Status.NUMERICAL], Status.NUMERICAL),
        ([Status.PASS, Status.REFUSED], Status.REFUSED),
    ],
)
def test_verdict_is_the_first_failure(statuses: list[Status], expected: Status) -> None:
    findings = tuple(Finding(check=str(place), status=status) for place, status in enumerate(statuses))
    assert Verdict.of(findings).status is expected


@pytest.mark.parametrize(
    "field", ["shape_ok", "dtype_ok", "n_exceeding", "nan_mismatch", "posinf_mismatch", "neginf_mismatch"]
)
def test_each_mismatch_alone_rejects_a_comparison(field: str) -> None:
    from dataclasses import replace

    bad = replace(_comparison(), **{field: False if field.endswith("ok") else 1})
    assert _comparison().accepted
    assert not bad.accepted


def test_torn_last_line_is_left_out(tmp_path: Path) -> None:
    with Journal(tmp_path, "r") as journal:
        journal.append(_record())
        journal.append(_record())
    journal.path.write_bytes(journal.path.read_bytes()[:-20])
    assert list(read_records(journal.path)) == [_record()]


def test_bad_line_in_the_middle_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_bytes(b'{"run_id": 1}\n' + encode_record(_record()))
    with pytest.raises(UsageError, match=r"records\.jsonl:1"):
        list(read_records(path))


def test_unwritable_directory_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="expected a writable directory"):
        Journal(tmp_path / "file", "r")
