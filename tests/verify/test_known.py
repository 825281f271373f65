"""Known deviations of libraries: each entry's example still fails, and its reason reaches the record."""

import pytest

from verify.candidates import load
from verify.case import Case
from verify.known import KNOWN, KnownDeviation
from verify.runner import RunOptions, run_cases


@pytest.mark.parametrize("entry", KNOWN, ids=lambda entry: f"{entry.candidate}-{entry.check}")
def test_known_deviation_is_not_stale(entry: KnownDeviation) -> None:
    if reason := load(entry.candidate).unavailable():
        pytest.skip(reason)
    options = RunOptions(candidates=(entry.candidate,), checks=(entry.check,))
    (record,) = run_cases((Case.parse(entry.example),), options, on_line=lambda line: None)
    assert record.verdict.status.is_failure, "stale: the example passes now"
    assert record.verdict.likely_causes[0] == entry.reason
