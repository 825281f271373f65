"""Laws of the datum, of its embedding and of the replay line."""

from __future__ import annotations

import base64
import gzip
import json
import math
import shlex
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import pytest

from verify.record import Record
from verify.report import data as data_module
from verify.report import replay_command, report_data
from verify.report.data import number
from verify.report.error_map import ALPHABET, UNIT_LEVEL, encode_map
from verify.report.facts import case_facts
from verify.report.html import PLAIN_LIMIT, embed_json
from verify.verdict import Comparison, Finding, Status

MakeRecords = Callable[[int], list[Record]]


def datum(records: list[Record]) -> dict[str, Any]:
    return report_data(records, title="Nightly", command="python -m verify run")


def test_the_columns_give_back_every_record(make_records: MakeRecords) -> None:
    records = make_records(60)
    found = datum(records)
    rows, words = found["records"], found["vocabulary"]
    for place, record in enumerate(records):
        assert rows["case_id"][place] == record.case_id
        assert words["candidate"][rows["candidate"][place]] == record.candidate
        assert found["statuses"][rows["status"][place]][0] == record.verdict.status
        assert words["features"][rows["features"][place]] == record.features
        assert rows["n_findings"][place] == len(record.verdict.findings)


def test_child_rows_follow_in_order_of_their_parents(make_records: MakeRecords) -> None:
    records = make_records(60)
    found = datum(records)
    comparisons = [c for r in records for f in r.verdict.findings for c in f.comparisons]
    assert found["comparisons"]["max_abs"] == [number(c.max_abs, 3) for c in comparisons]
    starts = list(accumulate(found["findings"]["n_comparisons"], initial=0))
    assert starts[-1] == len(comparisons)
    assert found["elements"]["got"] == [number(e.got, 9) for c in comparisons for e in c.worst]


def test_numbers_that_are_not_finite_are_text_and_the_json_is_strict(
    make_record: Callable[..., Record], make_comparison: Callable[..., Comparison]
) -> None:
    specials = (math.nan, math.inf, -math.inf)
    compared = tuple(make_comparison("out", 2.0, max_abs=value, gain=value, cosine=value) for value in specials)
    finding = Finding(check="forward", status=Status.NONFINITE, comparisons=compared)
    found = datum([make_record("attn1:x", "mine", [finding])])
    assert found["comparisons"]["max_abs"] == ["nan", "inf", "-inf"]
    assert found["comparisons"]["one_minus_cosine"] == ["nan", "-inf", "inf"]
    assert json.loads(embed_json(found)[1])["comparisons"]["gain_minus_1"] == ["nan", "inf", "-inf"]


def test_the_digits_near_one_survive(make_record: Callable[..., Record], make_comparison: Any) -> None:
    finding = Finding(check="f", status=Status.PASS, comparisons=(make_comparison("out", 0.5, cosine=1 - 2.5e-11),))
    cosine = datum([make_record("attn1:x", "mine", [finding])])["comparisons"]["one_minus_cosine"][0]
    assert cosine == pytest.approx(2.5e-11, rel=1e-2)


def test_rejected_comparisons_keep_their_worst_elements_when_not_all_fit(
    make_records: MakeRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = make_records(200)
    compared = [c for r in records for f in r.verdict.findings for c in f.comparisons]
    rejected = sum(not c.accepted for c in compared)
    monkeypatch.setattr(data_module, "ELEMENT_BUDGET", 10 * rejected)
    monkeypatch.setattr(data_module, "MAP_BUDGET", rejected - 1)
    found = datum(records)
    assert found["comparisons"]["n_elements"] == [0 if c.accepted else 10 for c in compared]
    assert sum(map(bool, found["comparisons"]["map"])) == found["kept"]["maps"] == found["wanted"]["maps"] - 1


def test_a_case_id_of_another_version_is_still_reported(make_record: Callable[..., Record]) -> None:
    found = datum([make_record("attn9:q=7,future=1", "mine")])
    assert found["vocabulary"]["dtype"] == ["unknown"]
    assert case_facts("attn1:b=2,sq=8,sk=9,h=4,hkv=2,d=16,dtype=bf16").shape == "b2 h4/2 q8 k9 d16"


def test_a_small_datum_is_plain_and_a_large_one_is_compressed(make_records: MakeRecords) -> None:
    small = datum(make_records(5))
    assert embed_json(small)[0] == "json"
    encoding, text = embed_json({**small, "title": "x" * PLAIN_LIMIT})
    assert encoding == "gzip"
    assert json.loads(gzip.decompress(base64.b64decode(text)))["title"] == "x" * PLAIN_LIMIT


def test_no_text_can_end_the_element_that_holds_the_datum(hostile: str) -> None:
    text = embed_json({"title": hostile + "\ud800\u2028"})[1]
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text)["title"] == hostile + "\ud800\u2028"


def test_a_shell_reads_the_replay_line_back(hostile: str) -> None:
    words = shlex.split(replay_command(hostile, hostile))
    assert words == ["python", "-m", "verify", "repro", hostile, "--candidate", hostile]


def test_a_map_cell_is_never_carried_over_the_bound() -> None:
    beyond = math.nextafter(1.0, 2.0)
    assert encode_map(((1.0, beyond),)) == ALPHABET[UNIT_LEVEL] + ALPHABET[UNIT_LEVEL + 1]
    assert encode_map(((math.nan, math.inf, 1e300),)) == ".!" + ALPHABET[-1]
    assert encode_map(((0.0,), (1e-300,))) == "0,0"
