"""Laws of the Markdown summary."""

from __future__ import annotations

import re
from collections.abc import Callable

from verify.record import Record
from verify.report import replay_command, summary_markdown
from verify.report.text import clip, markdown_code, markdown_line
from verify.verdict import Finding, Status

MakeRecord = Callable[..., Record]


def summary(records: list[Record]) -> str:
    return summary_markdown(records, title="Nightly", command="python -m verify run")


def test_it_names_totals_matrix_failures_routes_and_environment(make_records: Callable[[int], list[Record]]) -> None:
    records = make_records(400)
    text = summary(records)
    failed = sum(record.verdict.status.is_failure for record in records)
    assert f"**{failed} of 400 cases failed.**" in text
    assert "| candidate | forward | backward | determinism |" in text
    assert "Likely cause: causal diagonal off by one" in text
    assert "| torch\\_sdpa | flash | math | fp32 is not supported |" in text
    assert "- device: NVIDIA H200" in text


def test_each_kind_of_failure_has_the_replay_line_of_its_smallest_case(make_record: MakeRecord) -> None:
    ids = [f"attn1:b=1,sq={length},sk={length},h=1,d=64,dtype=fp32,seed=1" for length in (512, 16, 128)]
    finding = Finding(check="forward", status=Status.CRASH, reasons=("signal 11",))
    text = summary([make_record(case_id, "mine", [finding]) for case_id in ids])
    assert "(3 cases)" in text
    assert replay_command(ids[1], "mine") in text
    assert replay_command(ids[0], "mine") not in text


def test_a_run_that_shows_nothing_does_not_look_like_a_success(make_record: MakeRecord) -> None:
    skipped = make_record("attn1:x", "mine", [Finding(check="forward", status=Status.UNSUPPORTED)])
    for records in ([], [skipped], [make_record("attn1:x", "mine")]):
        assert "nothing was shown" in summary(records)
    assert "No case failed" in summary([make_record("attn1:x", "mine", [Finding(check="f", status=Status.PASS)])])


def test_hostile_text_ends_no_table_row_and_no_code_block(make_record: MakeRecord, hostile: str) -> None:
    finding = Finding(check=hostile, status=Status.CRASH, reasons=(hostile,))
    text = summary_markdown([make_record(hostile, hostile, [finding])], title=hostile, command=hostile)
    prose = re.sub(r"^(`{3,})sh\n.*?\n\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    rows = [line for line in prose.splitlines() if line.startswith("|")]
    widths = {len(re.findall(r"(?<!\\)\|", row)) for row in rows}
    assert widths <= {3, 6}
    assert "<" not in prose.replace("&lt;", "")
    assert re.search(r"(?<!\\)`", prose) is None


def test_it_fits_a_job_summary_whatever_the_run_brings(make_record: MakeRecord) -> None:
    def monster(place: int) -> Record:
        long = f"{place}" + "|<`é" * 5_000
        findings = [Finding(check=f"{check}{long}", status=Status.CRASH, reasons=(long,) * 9) for check in range(40)]
        return make_record(long, long, findings, run_id=long, started_at=long)

    text = summary_markdown([monster(place) for place in range(150)], title="T" * 10_000, command="c" * 100_000)
    assert len(text.encode()) < 1_000_000


def test_an_ordinary_nightly_summary_is_short(make_records: Callable[[int], list[Record]]) -> None:
    assert len(summary(make_records(1000)).encode()) < 20_000


def test_a_clipped_text_keeps_both_ends() -> None:
    text = clip("a" * 500 + "z" * 500, 100)
    assert len(text) == 100
    assert (text[0], text[-1]) == ("a", "z")
    assert clip("short", 100) == "short"


def test_a_fence_is_longer_than_the_backticks_inside() -> None:
    assert markdown_code("a````b").splitlines()[0] == "`````sh"
    assert markdown_line("a\nb\x1b[31m‮c") == "a\\\\nb\\\\x1b\\[31m\\\\u202ec"
