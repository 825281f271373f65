"""Laws of the orchestrator."""

from dataclasses import replace

import pytest

from verify.case import Case
from verify.checks import CHECKS
from verify.grid import profile_cases
from verify.record import Record, decode_record
from verify.runner import RunOptions, run_cases
from verify.verdict import Status

CASES = tuple(case for case in profile_cases("quick", seed=0) if case.problem.seqlen_k <= 40)[:4]
OPTIONS = RunOptions(candidates=("numpy_tiled", "impostor:zeros"), checks=("contract", "forward"), in_process=True)


def _facts(record: Record) -> tuple[str, str, Status, tuple[float, ...]]:
    ratios = tuple(c.max_bound_ratio for finding in record.verdict.findings for c in finding.comparisons)
    return record.case_id, record.candidate, record.verdict.status, ratios


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return run_cases(CASES, OPTIONS, on_line=lambda line: None)


def test_records_follow_the_order_of_cases_then_candidates(records: list[Record]) -> None:
    expected = [(case.case_id, name) for case in CASES for name in OPTIONS.candidates]
    assert [(record.case_id, record.candidate) for record in records] == expected


def test_number_of_jobs_and_the_process_of_the_candidate_change_nothing(records: list[Record]) -> None:
    own_process = replace(OPTIONS, in_process=False)
    assert [_facts(r) for r in run_cases(CASES, own_process, jobs=2, on_line=lambda line: None)] == [
        _facts(record) for record in records
    ]


def test_every_record_is_written_before_the_run_ends() -> None:
    lines: list[bytes] = []
    records = run_cases(CASES[:2], OPTIONS, on_line=lines.append)
    assert [decode_record(line).case_id for line in lines] == [record.case_id for record in records]


def test_undeclared_case_is_a_skip_with_its_reason() -> None:
    case = Case.parse("attn1:b=1,sq=2,sk=16,h=1,d=8,dtype=fp32,lenk=9,page=8,recipe=normal,seed=0")
    options = replace(OPTIONS, candidates=("torch_math",))
    (record,) = run_cases((case,), options, on_line=lambda line: None)
    assert record.verdict.status is Status.UNSUPPORTED
    assert "paged not declared" in record.verdict.findings[0].reasons[0]


@pytest.mark.parametrize("check", CHECKS.values(), ids=lambda check: check.name)
def test_every_check_says_what_it_costs_and_raises(check: object) -> None:
    assert check.summary  # type: ignore[attr-defined]
    assert check.calls >= 0  # type: ignore[attr-defined]
    assert Status.PASS not in check.raises  # type: ignore[attr-defined]
