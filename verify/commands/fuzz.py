"""`fuzz`: a campaign on one candidate; hands back the smallest case of every fault, ready to replay and to keep."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from verify.case import Case
from verify.checks import CHECKS, select_checks
from verify.commands.common import print_json, resolve_device, split_names
from verify.commands.repro import save_bundle
from verify.errors import UsageError, require
from verify.fuzz import (
    CampaignState,
    CaseJudge,
    Fault,
    Plan,
    load_regressions,
    run_campaign,
    save_regression,
)
from verify.fuzz.log import Line, log_path, slug
from verify.fuzz.minimise import EXPENSIVE
from verify.fuzz.pinned_values import pin
from verify.fuzz.pytest_file import pytest_source
from verify.journal import Journal
from verify.terminal import failure_lines
from verify.worker import candidate_for

TICK_S, LOG_TICK_S = 0.5, 10.0
"""Seconds between two progress lines, on a terminal and in a log."""


def fuzz_command(
    *,
    candidate: str,
    time_s: float | None,
    examples: int | None,
    jobs: int,
    seed: int,
    out: Path,
    resume: Path | None,
    keep_going: bool,
    save: bool,
    regressions: Path | None,
    database: str,
    max_seqlen: int,
    max_head_dim: int | None,
    as_json: bool,
    checks: str,
    device: str,
    timeout_s: float,
    in_process: bool,
    python: str | None,
) -> bool:
    """Run the campaign, print the faults, keep what was asked for; say whether there are faults.

    Raises
    ------
    KeyboardInterrupt
        After Ctrl-C or SIGTERM, when no fault was found until then.
    UsageError
        For an option that cannot be; an unknown or unavailable candidate.
    """
    require(jobs >= 1, "jobs", jobs, "an integer >= 1")
    require(0 <= seed < 2**31, "seed", seed, "an integer in [0, 2^31)")
    require(time_s is None or time_s > 0, "time", time_s, "a number of seconds > 0")
    require(examples is None or examples > 0, "examples", examples, "an integer >= 1")
    require(timeout_s > 0, "timeout", timeout_s, "a number of seconds > 0")
    require(max_seqlen >= 1, "max-seqlen", max_seqlen, "an integer >= 1")
    require(max_head_dim is None or max_head_dim >= 1, "max-head-dim", max_head_dim, "an integer >= 1")
    require(not (in_process and python), "in-process", in_process, "not together with --python")
    resolve_device(device)
    reason = candidate_for(candidate, python=python).unavailable()
    require(reason is None, "candidate", candidate, f"an available candidate ({reason})")
    folder = resume if resume is not None else out
    if resume is not None and not log_path(resume, candidate).exists():
        raise UsageError(f"resume={str(resume)!r}: expected the folder of a campaign on {candidate}")
    pinned = load_regressions(regressions) if regressions is not None else ()
    plan = Plan(
        candidate=candidate,
        out=folder,
        seed=seed,
        jobs=jobs,
        seconds=60.0 if time_s is None and examples is None else time_s,
        examples=examples,
        checks=tuple(check.name for check in select_checks(split_names(checks))) if checks else (),
        keep_going=keep_going,
        in_process=in_process,
        timeout_s=timeout_s,
        python=python,
        database=database,
        regressions=tuple((entry.case, entry.check) for entry in pinned if entry.check in CHECKS),
        max_seqlen=max_seqlen,
        max_head_dim=max_head_dim,
    )
    console = Console(stderr=as_json)
    progress = _Progress(console=console)
    state, interrupted = run_campaign(plan, progress.observe)
    progress.end(state)
    kept = [_keep(fault, plan, console, save=save, regressions=regressions) for fault in state.faults.values()]
    if as_json:
        print_json(_summary(state, kept, interrupted=interrupted))
    else:
        _print_end(console, state, plan, interrupted=interrupted)
    if interrupted and not state.faults:
        raise KeyboardInterrupt  # cut short is not "no fault": the command line ends with 130
    return bool(state.faults)


@dataclass(slots=True, kw_only=True)
class _Progress:
    """Prints where the campaign stands: rewrites a line on a terminal, adds one now and then to a log."""

    console: Console
    started: float = field(default_factory=time.monotonic)
    begun_with: int | None = None
    """Examples of earlier parts of the campaign."""
    told: float = 0.0

    def observe(self, state: CampaignState, lines: list[Line]) -> None:
        """Called a few times a second."""
        if self.begun_with is None:
            self.begun_with = state.examples
        now = time.monotonic()
        if now - self.told >= (TICK_S if self.console.is_terminal else LOG_TICK_S):
            self.told = now
            end = "\r" if self.console.is_terminal else "\n"
            self.console.print(self._line(state), end=end, soft_wrap=True, highlight=False)

    def end(self, state: CampaignState) -> None:
        """The last line."""
        self.console.print(self._line(state), soft_wrap=True, highlight=False)

    def _line(self, state: CampaignState) -> str:
        seconds = time.monotonic() - self.started
        here = state.examples - (self.begun_with or 0)
        return (
            f"{seconds:5.0f} s  {state.examples} cases ({here / max(seconds, 1e-3):.0f}/s)  "
            f"worst error/bound {state.worst_ratio:.2g}  pairs {state.coverage.share(2):.0%}  "
            f"triples {state.coverage.share(3):.0%}  faults {len(state.faults)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """A fault and the files that were written for it."""

    fault: Fault
    files: tuple[Path, ...]


def _keep(fault: Fault, plan: Plan, console: Console, *, save: bool, regressions: Path | None) -> _Kept:
    """Print a fault in full; write its test, its record, and the bundle and the pinned case where asked for."""
    folder = log_path(plan.out, plan.candidate).parent
    name = slug(str(fault.key))
    judge = CaseJudge(timeout_s=plan.timeout_s, in_process=plan.in_process, python=plan.python)
    files = []
    try:
        case = Case.parse(fault.case_id)
        judged = judge.judge(case, fault.candidate, only=fault.key.check)
        record = judge.record(judged)
        with Journal(folder, datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ-fuzz")) as journal:
            journal.append(record)
        kind = "known deviation" if fault.key.known else "fault"
        head = f"\n{kind}: {fault.key}  ({_times(fault)}, {_effort(fault)})"
        console.print(head, soft_wrap=True, highlight=False, markup=False)
        if not judged.failing:
            console.print("  passes in a fresh process: the fault needs calls before it", highlight=False)
        for line in failure_lines(record):
            console.print(f"  {line}", soft_wrap=True, highlight=False, markup=False)
        for line in _first_seen(fault, judge):
            console.print(f"    {line}", soft_wrap=True, highlight=False, markup=False)
        run = judge.case_run(case, fault.candidate)
        files.append(_written(folder / f"test_{name.replace('-', '_')}.py", pytest_source(fault, run)))
        if save:
            path = folder / f"{name}.npz"
            save_bundle(run, path)
            files.append(path)
    finally:
        judge.close()
    if regressions is not None:
        files.append(save_regression(fault, regressions))
    for path in files:
        console.print(f"  kept    {path}", soft_wrap=True, highlight=False, markup=False)
    return _Kept(fault=fault, files=tuple(files))


def _first_seen(fault: Fault, judge: CaseJudge) -> Iterator[str]:
    """The case as it was found and the causes that fit it: a larger case tells more of them apart."""
    found = fault.found
    yield f"first seen  python -m verify repro '{found.case_id}' --candidate {found.candidate}"
    if fault.key.status not in EXPENSIVE:
        record = judge.record(judge.judge(Case.parse(found.case_id), found.candidate))
        for cause in record.verdict.likely_causes:
            yield f"  cause there  {cause}"


def _written(path: Path, text: str) -> Path:
    try:
        path.write_text(text)
    except OSError as error:
        raise UsageError(f"out={str(path)!r}: expected a writable file ({error.strerror})") from error
    return path


def _times(fault: Fault) -> str:
    return "seen once" if fault.count == 1 else f"seen {fault.count} times"


def _effort(fault: Fault) -> str:
    found = fault.found
    text = f"{found.source} case {found.examples} after {found.seconds:.1f} s"
    if fault.reduced is None:
        return text + ", not made smaller yet"
    unfinished = "" if fault.reduced.complete else ", cut short"
    return text + f", made small in {fault.reduced.calls} calls and {fault.reduced.seconds:.1f} s{unfinished}"


def _print_end(console: Console, state: CampaignState, plan: Plan, *, interrupted: bool) -> None:
    say: Callable[[str], None] = lambda text: console.print(text, soft_wrap=True, highlight=False, markup=False)  # noqa: E731
    for gone in state.gone:
        say(f"gone: {gone.fault} passes now on {gone.case_id}")
    if state.worst_case:
        say(f"worst passing case, {state.worst_ratio:.3g} x the bound: {state.worst_case}")
    if interrupted:
        say(f"interrupted: go on with --resume {plan.out}")
    if all(fault.key.known for fault in state.faults.values()):
        say("no fault found beside the known ones" if state.faults else "no fault found")


def _summary(state: CampaignState, kept: list[_Kept], *, interrupted: bool) -> dict[str, object]:
    faults = []
    for entry in kept:
        fault, case = entry.fault, Case.parse(entry.fault.case_id)
        pinned = pin(case)
        faults.append(
            {
                "fault": str(fault.key),
                "known": fault.key.known,
                "count": fault.count,
                "case_id": fault.case_id,
                "candidate": fault.candidate,
                "source": fault.found.source,
                "examples": fault.found.examples,
                "seconds": round(fault.found.seconds, 3),
                "minimise_calls": fault.reduced.calls if fault.reduced else 0,
                "scores": case.problem.seqlen_q * case.problem.seqlen_k,
                "nonzero_qk": pinned.nonzero if pinned else None,
                "files": [str(path) for path in entry.files],
            }
        )
    return {
        "examples": state.examples,
        "seconds": round(state.seconds, 3),
        "worst_ratio": state.worst_ratio,
        "worst_case": state.worst_case,
        "pairs": round(state.coverage.share(2), 4),
        "triples": round(state.coverage.share(3), 4),
        "faults": faults,
        "gone": [gone.fault for gone in state.gone],
        "interrupted": interrupted,
    }
