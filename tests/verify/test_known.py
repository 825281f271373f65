"""Known deviations of libraries: each entry's example still fails, and its reason reaches the record."""

import pytest

from verify.candidates import load
from verify.case import Case
from verify.known import KNOWN, KnownDeviation, known_reason
from verify.runner import RunOptions, run_cases
from verify.verdict import Finding, Status

CHECKS = [(entry, check) for entry in KNOWN for check in entry.findings]


@pytest.mark.parametrize(("entry", "check"), CHECKS, ids=lambda value: getattr(value, "candidate", value))
def test_known_deviation_is_not_stale(entry: KnownDeviation, check: str) -> None:
    if reason := load(entry.candidate).unavailable():
        pytest.skip(reason)
    options = RunOptions(candidates=(entry.candidate,), checks=(check,))
    (record,) = run_cases((Case.parse(entry.example),), options, on_line=lambda line: None)
    assert record.verdict.status in entry.statuses(check), "stale: the example passes now, or fails in another way"
    assert record.verdict.likely_causes[0] == entry.reason


def test_another_status_is_another_fault() -> None:
    problem = Case.parse("attn1:b=2,sq=1,sk=3,h=1,d=8,dtype=fp32,lenk=2+3,seed=1").problem
    lost, wrong = (Finding(check="forward", status=s, reasons=("r",)) for s in (Status.NONFINITE, Status.NUMERICAL))
    assert known_reason("jax_attention", problem, lost)
    assert known_reason("jax_attention", problem, wrong) is None
