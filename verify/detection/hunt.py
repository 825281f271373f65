"""Tries cases on one wrong candidate until a check kills it. Runs inside a forked child."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from verify.candidate import Candidate
from verify.case import features
from verify.checks import Check
from verify.detection.bench import Prepared, judge
from verify.detection.forked import Tell
from verify.explain import likely_keys
from verify.verdict import Finding, Status
from verify.worker import InProcessSession

UNBUILT = (Status.COMPILE_ERROR, Status.LAUNCH_ERROR)
"""A mutant that ends so has not run: its patch is at fault, and no check has found anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """What killed a candidate."""

    case_id: str
    check: str
    """Name of the check; `process` when the candidate died or hung."""
    status: Status
    reason: str
    causes: tuple[str, ...] = ()
    """Keys of the causes named for the case, most likely first."""
    findings: tuple[Finding, ...] = ()
    passed: frozenset[str] = frozenset()
    """Features of the cases that it passed before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hunt:
    """How the hunt for one candidate went in one stage."""

    name: str
    stage: str = ""
    kill: Kill | None = None
    broken: str = ""
    """Why the candidate could not be built: a defect of the catalogue, never a kill."""
    cases: int = 0
    """Cases tried, the killing one included."""
    seconds: float = 0.0
    kills: tuple[tuple[str, str, float], ...] = ()
    """(case id, check, seconds of the check) of every kill, when asked for all."""


def hunt(
    build: Callable[[], Candidate],
    name: str,
    bench: Sequence[Prepared],
    checks: Sequence[Check],
    tell: Tell,
    *,
    all_kills: bool,
) -> Hunt:
    """Try the prepared cases in order.

    Parameters
    ----------
    build
        Makes the candidate: in the child, as it may compile.
    bench, checks
        What to try; every check runs on every case, so that the explanation sees all findings.
    tell
        Notes the case before it is tried: the last note of a child that died is the case that killed it.
    all_kills
        Go on after the first kill, to measure which cases and checks kill.
    """
    started = time.perf_counter()
    candidate = build()
    session = InProcessSession(candidate)
    first: Kill | None = None
    tried, kills = 0, []
    passed: frozenset[str] = frozenset()
    for prepared in bench:
        tell(prepared.case.case_id)
        tried += first is None
        findings = tuple(_timed(candidate, prepared, session, checks))
        unbuilt = next((f for f in findings if f.status in UNBUILT and name.startswith("mutant:")), None)
        if unbuilt is not None:
            return Hunt(name=name, broken=f"{unbuilt.status}: {'; '.join(unbuilt.reasons)[:300]}")
        killing = [f for f in findings if f.status.is_failure and prepared.counts(f.check)]
        if not killing:
            passed |= frozenset(features(prepared.case.problem))
            continue
        kills += [(prepared.case.case_id, f.check, f.duration_ms / 1e3) for f in killing]
        first = first or _kill(prepared, killing[0], findings, passed)
        if not all_kills:
            break
    seconds = time.perf_counter() - started
    return Hunt(name=name, kill=first, cases=tried, seconds=seconds, kills=tuple(kills))


def _timed(
    candidate: Candidate, prepared: Prepared, session: InProcessSession, checks: Sequence[Check]
) -> Sequence[Finding]:
    found, before = [], time.perf_counter()
    for finding in judge(candidate, prepared.facts, session, checks):
        now = time.perf_counter()
        found.append(replace(finding, duration_ms=1e3 * (now - before)))
        before = now
    return found


def _kill(prepared: Prepared, finding: Finding, findings: tuple[Finding, ...], passed: frozenset[str]) -> Kill:
    causes = likely_keys(prepared.case.problem, findings, passed=passed)
    return Kill(
        case_id=prepared.case.case_id,
        check=finding.check,
        status=finding.status,
        reason="; ".join(finding.reasons)[:300],
        causes=causes,
        findings=findings,
        passed=passed,
    )
