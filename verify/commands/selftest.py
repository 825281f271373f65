"""`selftest`: the score of the checks on mutants and impostors, and their false alarms on honest candidates."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from verify.commands.common import print_json
from verify.detection.bench import Prepared
from verify.detection.campaign import MUTANT, PROFILES, Stage, build_honest, build_target, run_campaign, targets
from verify.detection.cases import scoring_cases
from verify.detection.duel import duel, rings
from verify.detection.honesty import honesty_campaign
from verify.detection.hunt import Hunt
from verify.detection.page import markdown
from verify.detection.score import duel_summary, honesty_summary, score
from verify.errors import require

TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """What a profile of the self-test spends beside the hunts."""

    needed: float
    """Share of the counted mutants that must be killed."""
    honest_cases: int
    """Cases of each dtype in the false-alarm campaign."""
    honest_grid: str
    rule_cases: int
    """Cases on which the rules of others are measured."""
    rule_dtypes: tuple[str, ...]


EFFORTS = {
    "quick": Effort(needed=0.85, honest_cases=4, honest_grid="quick", rule_cases=0, rule_dtypes=()),
    "full": Effort(needed=0.97, honest_cases=560, honest_grid="full", rule_cases=24, rule_dtypes=("fp32", "bf16")),
}


def selftest_command(*, profile: str, pattern: str, jobs: int, out: Path, as_json: bool) -> bool:
    """Hunt mutants and impostors, look for false alarms, write the result to OUT; say whether anything is wrong.

    Wrong is: too few mutants killed, an impostor alive, a false alarm, or a mutant that does not build.

    Raises
    ------
    UsageError
        Unknown profile, no matching name, or fewer than one job.
    """
    require(profile in PROFILES, "profile", profile, "one of " + ", ".join(PROFILES))
    require(jobs >= 1, "jobs", jobs, "an integer >= 1")
    names = targets(profile, pattern)
    require(bool(names), "mutants", pattern, "text that occurs in a name of a mutant or impostor")
    console, started = Console(stderr=as_json), time.perf_counter()
    effort = EFFORTS[profile]
    hunts = run_campaign(
        names, PROFILES[profile], jobs=jobs, on_bench=partial(_say_bench, console), on_hunt=partial(_say_hunt, console)
    )
    summary: dict[str, Any] = {"profile": profile, "pattern": pattern, **score(hunts)}
    if not pattern:
        honesty = honesty_campaign(n_cases=effort.honest_cases, grid=effort.honest_grid, checks=(), jobs=jobs)
        summary["honesty"] = honesty_summary(honesty)
    if effort.rule_cases:
        summary["rules"] = {dtype: _rules(names, dtype, effort.rule_cases, jobs) for dtype in effort.rule_dtypes}
    summary["seconds"] = round(time.perf_counter() - started, 1)
    _write(summary, out)
    if as_json:
        print_json(summary)
    else:
        _print_result(console, summary, out)
    return _is_wrong(summary, effort)


def _rules(names: Sequence[str], dtype: str, n_cases: int, jobs: int) -> dict[str, Any]:
    """The rules of others on the mutants of the tiled kernel among the names."""
    ring = list(rings(build_honest("cuda_tiled", ""), scoring_cases(dtype)[: 2 * n_cases]))[:n_cases]
    mutants = [name for name in names if name.startswith(MUTANT) and not name.startswith(f"{MUTANT}textbook_")]
    tally = duel([partial(build_target, name, "") for name in mutants], ring, jobs=jobs, timeout_s=TIMEOUT_S)
    return duel_summary(tally, Counter(rule for place in ring for rule in place.alarms), len(ring))


def _is_wrong(summary: dict[str, Any], effort: Effort) -> bool:
    mutants, impostors = summary["mutants"], summary["impostors"]
    few = mutants["counted"] > 0 and mutants["share_killed"] < effort.needed
    alarms = summary.get("honesty", {}).get("false_alarms", ())
    return bool(few or mutants["broken"] or alarms or impostors["killed"] < impostors["tried"])


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
