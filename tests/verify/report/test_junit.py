"""Laws of the JUnit file."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import pytest

from verify.record import Record
from verify.report import junit_xml
from verify.report.junit import xml_text
from verify.verdict import Comparison, Finding, Status

MakeRecord = Callable[..., Record]


def parse(records: list[Record]) -> ElementTree.Element:
    return ElementTree.fromstring(junit_xml(records, title="Nightly", command="python -m verify run").encode())


def test_every_record_is_one_testcase_under_its_candidate(make_records: Callable[[int], list[Record]]) -> None:
    records = make_records(200)
    cases = parse(records).iter("testcase")
    found = sorted((case.get("classname"), case.get("name")) for case in cases)
    assert found == sorted((record.candidate, record.case_id) for record in records)


def test_the_counts_of_the_suites_are_those_of_their_testcases(make_records: Callable[[int], list[Record]]) -> None:
    root = parse(make_records(200))
    for suite in (root, *root.iter("testsuite")):
        for name, tag in (("tests", "testcase"), ("failures", "failure"), ("skipped", "skipped")):
            assert int(suite.attrib[name]) == len(list(suite.iter(tag)))
    assert int(root.attrib["failures"]) > 0


@pytest.mark.parametrize("status", list(Status))
def test_each_status_has_its_outcome(status: Status, make_record: MakeRecord) -> None:
    record = make_record("attn1:x", "mine", [Finding(check="forward", status=status, reasons=("because",))])
    case = next(parse([record]).iter("testcase"))
    skipped = status in (Status.UNSUPPORTED, Status.POWERLESS)
    expected = [] if status is Status.PASS else ["skipped" if skipped else "failure"]
    assert [child.tag for child in case] == expected
    assert all(child.get("type") == status for child in case)
    assert all("because" in child.attrib["message"] for child in case)


def test_a_failure_tells_how_to_replay_it_and_where_it_is_worst(
    make_record: MakeRecord, make_comparison: Callable[..., Comparison]
) -> None:
    finding = Finding(check="forward", status=Status.NUMERICAL, comparisons=(make_comparison("out", 42.0),))
    failure = next(parse([make_record("attn1:x", "mine", [finding])]).iter("failure"))
    assert failure.text is not None
    assert "python -m verify repro 'attn1:x' --candidate mine" in failure.text
    assert failure.text.count("error/bound 42") == 11
    assert "rows 64..127 of the last query tile" in failure.text
    assert "error/bound 42" in failure.attrib["message"]


def test_hostile_text_comes_back_as_it_was(make_record: MakeRecord, hostile: str) -> None:
    finding = Finding(check="forward", status=Status.CRASH, reasons=(hostile,))
    root = parse([make_record(hostile, hostile, [finding])])
    case = next(root.iter("testcase"))
    assert (case.get("name"), case.get("classname")) == (hostile, hostile)
    assert hostile in next(root.iter("failure")).attrib["message"]


def test_characters_that_xml_forbids_become_escapes(make_record: MakeRecord) -> None:
    dirty = "".join(map(chr, (*range(32), 127, 0xD800, 0xFFFE, 0xFFFF))) + "é\U0001f600"
    finding = Finding(check="forward", status=Status.CRASH, reasons=(dirty,))
    message = next(parse([make_record("attn1:x", "mine", [finding])]).iter("failure")).attrib["message"]
    assert "\\x00" in message
    assert "\\ud800" in message
    assert message.endswith("é\U0001f600")
    assert xml_text("a\tb\nc") == "a\tb\nc"


def test_numbers_that_are_not_finite_are_named(make_record: MakeRecord, make_comparison: Any) -> None:
    comparisons = (make_comparison("out", math.inf), make_comparison("lse", math.nan))
    finding = Finding(check="forward", status=Status.NONFINITE, comparisons=comparisons)
    failure = next(parse([make_record("attn1:x", "mine", [finding])]).iter("failure"))
    assert failure.text is not None
    assert "error/bound inf" in failure.text
    assert "error/bound NaN" in failure.text


def test_a_run_without_records_is_a_valid_empty_file() -> None:
    assert parse([]).attrib["tests"] == "0"
