"""`run`: cases of a profile on candidates, with a journal, a report and a summary."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from verify.candidates import builtin_names
from verify.capture_file import capture_cases
from verify.case import Case
from verify.checks import select_checks
from verify.commands.common import print_json, resolve_device, split_names
from verify.errors import require
from verify.fuzz import load_regressions
from verify.grid import profile_cases
from verify.journal import Journal
from verify.record import Record
from verify.report import write_report
from verify.runner import RunOptions, run_cases
from verify.summary_json import summarise
from verify.terminal import matrices, print_failures, skipped_line, totals_line
from verify.verdict import Status
from verify.worker import candidate_for

SHOWN_FAILURES = 5


def run_command(
    *,
    candidates: tuple[str, ...],
    profile: str,
    select: str,
    capture: Path | None,
    regressions: Path | None,
    seed: int,
    jobs: int,
    out: Path,
    as_json: bool,
    checks: str,
    device: str,
    timeout_s: float,
    in_process: bool,
    python: str | None,
) -> bool:
    """Run, report and say whether there are findings."""
    require(jobs >= 1, "jobs", jobs, "an integer >= 1")
    require(timeout_s > 0, "timeout", timeout_s, "a number of seconds > 0")
    require(not (in_process and python), "in-process", in_process, "not together with --python")
    console = Console(stderr=as_json)
    options = RunOptions(
        candidates=choose_candidates(candidates, console, python=python),
        checks=tuple(check.name for check in select_checks(split_names(checks))),
        timeout_s=timeout_s,
        in_process=in_process,
        python=python,
        run_id=datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ-") + secrets.token_hex(2),
        device=resolve_device(device),
    )
    pinned = tuple(entry.case for entry in load_regressions(regressions)) if regressions is not None else ()
    cases = tuple(dict.fromkeys((*pinned, *choose_cases(profile, select, capture, seed))))
    records = _run(cases, options, jobs, out, console)
    command = "python -m verify " + " ".join(sys.argv[1:])
    paths = write_report(records, out / "report", title=f"{profile} profile", command=command.strip())
    if as_json:
        print_json(summarise(records, run_id=options.run_id, report=str(paths.html)))
    else:
        _print_results(console, records, paths.html)
    return any(record.verdict.status.is_failure for record in records)


def choose_candidates(names: tuple[str, ...], console: Console, *, python: str | None = None) -> tuple[str, ...]:
    """The asked candidates, all of which must be available; or every available built-in one."""
    if names:
        for name in names:
            reason = candidate_for(name, python=python).unavailable()
            require(reason is None, "candidate", name, f"an available candidate ({reason})")
        return tuple(dict.fromkeys(names))
    chosen = []
    for name in builtin_names():
        reason = candidate_for(name, python=python).unavailable()
        if reason is None:
            chosen.append(name)
        else:
            console.print(f"{name}: left out, {reason}", soft_wrap=True, highlight=False, markup=False)
    return tuple(chosen)


def choose_cases(profile: str, select: str, capture: Path | None, seed: int) -> tuple[Case, ...]:
    """Cases of the profile or of a capture file, filtered by text in label or id."""
    require(0 <= seed < 2**63, "seed", seed, "an integer in [0, 2^63)")
    cases = capture_cases(str(capture)) if capture is not None else profile_cases(profile, seed=seed)
    chosen = tuple(case for case in cases if select in case.label or select in case.case_id)
    require(bool(chosen), "k", select, f"text that occurs in one of the {len(cases)} cases")
    return chosen


def _run(cases: Sequence[Case], options: RunOptions, jobs: int, out: Path, console: Console) -> list[Record]:
    total = len(cases) * len(options.candidates)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    with Journal(out, options.run_id) as journal, bar:
        task = bar.add_task(f"{len(cases)} cases x {len(options.candidates)} candidates", total=total)
        tick = _plain_ticks(console, total) if not console.is_terminal else lambda: bar.advance(task)

        def on_line(line: bytes) -> None:
            journal.append_line(line)
            tick()

        try:
            return run_cases(cases, options, jobs=min(jobs, len(cases)), on_line=on_line)
        except KeyboardInterrupt:
            bar.stop()
            console.print(f"judged so far: python -m verify report {journal.path}", soft_wrap=True, highlight=False)
            raise


def _plain_ticks(console: Console, total: int) -> Callable[[], None]:
    """Progress for logs: a line at each tenth."""
    state = {"done": 0}

    def tick() -> None:
        state["done"] += 1
        if state["done"] * 10 // total > (state["done"] - 1) * 10 // total:
            console.print(f"{state['done']}/{total} judged", highlight=False)

    return tick


def _print_results(console: Console, records: list[Record], html: Any) -> None:
    for table in matrices(records, width=console.width):
        console.print(table)
        console.print()
    console.print(skipped_line(records), highlight=False, soft_wrap=True)
    print_failures(console, records, limit=SHOWN_FAILURES)
    console.print("\n" + totals_line(records), highlight=False)
    powerless = sum(record.verdict.status is Status.POWERLESS for record in records)
    if powerless:
        console.print(f"{powerless} could not fail: see the report", highlight=False)
    console.print(f"report: {html}", soft_wrap=True, highlight=False)
