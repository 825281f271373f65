"""`selftest`: the score of the checks on mutants and impostors, and their false alarms on honest candidates."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console

from verify.commands.common import print_json
from verify.detection.bench import Prepared
from verify.detection.campaign import MUTANT, PROFILES, Stage, build_honest, build_target, run_campaign, targets
from verify.detection.cases import scoring_cases
from verify.detection.duel import duel, rings
from verify.detection.honesty import Honesty, honesty_campaign
from verify.detection.hunt import Hunt
from verify.detection.page import markdown
from verify.detection.score import duel_summary, honesty_summary, score
from verify.detection.sources import sources_digest
from verify.errors import require
from verify.fuzz.trials import Trial, fuzz_trials, trial_mutants, trials_summary

TIMEOUT_S = 300.0
PARTS = ("hunts", "honesty", "rules", "fuzz")
FUZZ_LANES = 2
PROGRESS_S = 10.0
"""Seconds between two lines about the honest case-checks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """What a profile of the self-test spends beside the hunts."""

    needed: float
    """Share of the counted mutants that must be killed."""
    honest_checks: int
    """Case-checks of the false-alarm campaign."""
    rule_cases: int
    """Cases on which the rules of others are measured."""
    rule_dtypes: tuple[str, ...]
    fuzzed: int
    """Mutants that fuzzing must find from a cold start."""


EFFORTS = {
    "quick": Effort(needed=0.85, honest_checks=2_000, rule_cases=0, rule_dtypes=(), fuzzed=0),
    "full": Effort(needed=0.97, honest_checks=100_000, rule_cases=24, rule_dtypes=("fp32", "bf16"), fuzzed=40),
}


@dataclass(slots=True, kw_only=True)
class SelfTest:
    """One run of the command: what was asked for, and the summary as it grows."""

    profile: str
    names: tuple[str, ...]
    jobs: int
    seed: int
    honest_checks: int
    fuzzed: tuple[str, ...]
    """Mutants on which the fuzzing is tried."""
    console: Console
    summary: dict[str, Any]
    _said_at: float = field(default_factory=time.perf_counter)

    def hunts(self) -> None:
        """Hunt the mutants and impostors; an interrupted hunt leaves what it has."""
        found: dict[str, Hunt] = {}

        def keep(hunt: Hunt) -> None:
            found[hunt.name] = hunt
            _say_hunt(self.console, hunt)

        try:
            run_campaign(
                self.names,
                PROFILES[self.profile],
                jobs=self.jobs,
                on_bench=partial(_say_bench, self.console),
                on_hunt=keep,
            )
        finally:
            self.summary["hunts"] = score([found[name] for name in self.names if name in found])
            self.summary["hunts"]["not_hunted"] = [name for name in self.names if name not in found]

    def honesty(self) -> None:
        """Look for false alarms."""
        found = honesty_campaign(
            case_checks=self.honest_checks, jobs=self.jobs, seed=self.seed, on_answer=self._say_progress
        )
        self.summary["honesty"] = honesty_summary(found)
        if found.ended == "interrupted":
            raise KeyboardInterrupt

    def rules(self) -> None:
        """Put the rules of others beside the derived bounds."""
        effort = EFFORTS[self.profile]
        self.summary["rules"] = {
            dtype: _rules(self.names, dtype, effort.rule_cases, self.jobs) for dtype in effort.rule_dtypes
        }

    def fuzz(self) -> None:
        """Let campaigns find seeded faults from a cold start; two processes each, on any machine."""
        trials: list[Trial] = []
        try:
            fuzz_trials(self.fuzzed, jobs=FUZZ_LANES, seed=self.seed, on_trial=trials.append)
        finally:
            self.summary["fuzz"] = trials_summary(trials)

    def _say_progress(self, so_far: Honesty) -> None:
        now = time.perf_counter()
        if now - self._said_at >= PROGRESS_S:
            self._said_at = now
            self.console.print(
                f"honest: {so_far.case_checks} of {so_far.wanted} case-checks, {len(so_far.alarms)} false alarms, "
                f"{len(so_far.known)} known deviations",
                highlight=False,
            )


def selftest_command(
    *,
    profile: str,
    pattern: str,
    jobs: int,
    out: Path,
    as_json: bool,
    only: tuple[str, ...] = (),
    seed: int = 0,
    honest_checks: int | None = None,
    fuzz: int | None = None,
) -> bool:
    """Hunt mutants and impostors, look for false alarms, write the result to OUT; say whether anything is wrong.

    Wrong is: too few mutants killed, an impostor alive, a false alarm, fewer honest case-checks than asked for, or a
    mutant that does not build. With `only`, the other parts are taken from OUT where the same sources made them.

    Raises
    ------
    UsageError
        Unknown profile or part, no matching name, fewer than one job or case-check, a negative seed or count.
    KeyboardInterrupt
        When interrupted or terminated, after what was found is written.
    """
    require(profile in PROFILES, "profile", profile, "one of " + ", ".join(PROFILES))
    require(jobs >= 1, "jobs", jobs, "an integer >= 1")
    require(0 <= seed < 2**30, "seed", seed, "an integer in [0, 2^30)")
    require(set(only) <= set(PARTS), "only", only, "parts out of " + ", ".join(PARTS))
    effort, names = EFFORTS[profile], targets(profile, pattern)
    require(bool(names), "mutants", pattern, "text that occurs in a name of a mutant or impostor")
    wanted = effort.honest_checks if honest_checks is None else honest_checks
    require(wanted >= 1, "honest_checks", wanted, "an integer >= 1")
    fuzzed = effort.fuzzed if fuzz is None and not pattern else fuzz or 0
    require(fuzzed >= 0, "fuzz", fuzzed, "an integer >= 0")
    console = Console(stderr=as_json)
    summary = _start_summary(profile, pattern, seed, out if only else None)
    run = SelfTest(
        profile=profile,
        names=names,
        jobs=jobs,
        seed=seed,
        honest_checks=wanted,
        fuzzed=trial_mutants(fuzzed, pattern),
        console=console,
        summary=summary,
    )
    skipped = {"honesty": bool(pattern), "rules": not effort.rule_cases, "fuzz": not fuzzed}
    try:
        with _ended_like_an_interrupt():
            for part in PARTS:
                if part in only or not (only or skipped.get(part)):
                    _timed_part(run, part, getattr(run, part))
    finally:
        _write(summary, out)
    if as_json:
        print_json(summary)
    else:
        _print_result(console, summary, out)
    return _is_wrong(summary, effort)


@contextmanager
def _ended_like_an_interrupt() -> Iterator[None]:
    """SIGTERM, as `timeout` sends it, ends the command as Ctrl-C does: what was found is written."""

    def end(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _start_summary(profile: str, pattern: str, seed: int, out: Path | None) -> dict[str, Any]:
    """An empty summary, or that of the folder when it answers the same question about the same sources."""
    asked = {"profile": profile, "pattern": pattern, "seed": seed, "sources": sources_digest()}
    earlier = out / "selftest.json" if out is not None else None
    if earlier is not None and earlier.is_file():
        summary: dict[str, Any] = json.loads(earlier.read_text())
        if all(summary.get(name) == value for name, value in asked.items()):
            return summary
    return {**asked, "seconds": 0.0, "parts": {}}


def _timed_part(run: SelfTest, part: str, work: Callable[[], None]) -> None:
    """Run one part and note when, how long and in how many processes."""
    started_at, started = datetime.now(UTC), time.perf_counter()
    run.summary.pop(part, None)
    run.summary["parts"].pop(part, None)
    try:
        work()
    finally:
        seconds = round(time.perf_counter() - started, 1)
        at = started_at.isoformat(timespec="seconds")
        run.summary["parts"][part] = {"started_at": at, "seconds": seconds, "jobs": run.jobs}
        run.summary["seconds"] = round(sum(done["seconds"] for done in run.summary["parts"].values()), 1)


def _rules(names: Sequence[str], dtype: str, n_cases: int, jobs: int) -> dict[str, Any]:
    """The rules of others on the mutants of the tiled kernel among the names."""
    ring = list(rings(build_honest("cuda_tiled", ""), scoring_cases(dtype)[: 2 * n_cases]))[:n_cases]
    mutants = [name for name in names if name.startswith(MUTANT) and not name.startswith(f"{MUTANT}textbook_")]
    tally = duel([partial(build_target, name, "") for name in mutants], ring, jobs=jobs, timeout_s=TIMEOUT_S)
    return duel_summary(tally, Counter(rule for place in ring for rule in place.alarms), len(ring))


def _is_wrong(summary: dict[str, Any], effort: Effort) -> bool:
    """Of the parts that the summary holds."""
    hunts, honesty = summary.get("hunts"), summary.get("honesty")
    return bool((hunts and _hunts_are_wrong(hunts, effort)) or (honesty and _honesty_is_wrong(honesty)))


def _hunts_are_wrong(hunts: dict[str, Any], effort: Effort) -> bool:
    mutants, impostors = hunts["mutants"], hunts["impostors"]
    few = mutants["counted"] > 0 and mutants["share_killed"] < effort.needed
    missing = hunts["not_hunted"]
    return bool(few or mutants["broken"] or missing or impostors["killed"] < impostors["tried"])


def _honesty_is_wrong(honesty: dict[str, Any]) -> bool:
    return bool(honesty["false_alarms"] or honesty["ended"] or honesty["case_checks"] < honesty["wanted"])


def _write(summary: dict[str, Any], out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for name, text in (("selftest.json", json.dumps(summary, indent=1)), ("selftest.md", markdown(summary))):
        partial_file = out / f".{name}"
        partial_file.write_text(text)
        partial_file.replace(out / name)


def _say_bench(console: Console, stage: Stage, honest: str, bench: list[Prepared]) -> None:
    failing = [
        (p.case.case_id, check, status) for p in bench for check, status in p.honest.items() if status.is_failure
    ]
    console.print(f"{stage.name}: {honest} prepared on {len(bench)} cases", highlight=False)
    for case_id, check, status in failing:
        console.print(f"  FALSE ALARM {check} {status} {case_id}", highlight=False, soft_wrap=True)


def _say_hunt(console: Console, found: Hunt) -> None:
    if found.kill is None:
        outcome = f"BROKEN {found.broken}" if found.broken else "alive"
        console.print(f"  {found.name}: {outcome} after {found.cases} cases", highlight=False, soft_wrap=True)


def _print_result(console: Console, summary: dict[str, Any], out: Path) -> None:
    page = markdown(summary).split("\n## ")[0]
    console.print(page, highlight=False, soft_wrap=True)
    console.print(f"report: {out / 'selftest.md'}", highlight=False, soft_wrap=True)
