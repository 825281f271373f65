"""Totals, matrix, failure groups and routes of a run, for the page's head and the Markdown summary."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from verify.record import Environment, Record
from verify.report.facts import case_facts, environment_key, worst_ratio
from verify.verdict import Comparison, Finding, Status


@dataclass(slots=True)
class Tally:
    """Counts by outcome, and the largest error/bound behind them."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    powerless: int = 0
    ratio: float = -math.inf
    """-inf = nothing was compared; NaN = an error/bound that is no number."""

    @property
    def total(self) -> int:
        return self.passed + self.failed + self.skipped + self.powerless

    def add(self, status: Status, comparisons: Iterable[Comparison]) -> None:
        """Count one finding or one case."""
        if status.is_failure:
            self.failed += 1
        elif status is Status.PASS:
            self.passed += 1
        elif status is Status.UNSUPPORTED:
            self.skipped += 1
        else:
            self.powerless += 1
        ratio = worst_ratio(comparisons)
        self.ratio = math.nan if math.isnan(ratio) or math.isnan(self.ratio) else max(self.ratio, ratio)


@dataclass(slots=True)
class FailureGroup:
    """Failing cases of one candidate that look alike."""

    candidate: str
    status: Status
    check: str
    tensor: str
    """Tensor with the largest error/bound; empty where none was rejected."""
    cause: str
    example: Record
    """The smallest of them."""
    places: list[int] = field(default_factory=list)
    """Places of its records in the run."""
    ratio: float = -math.inf

    @property
    def count(self) -> int:
        return len(self.places)

    @property
    def label(self) -> str:
        """One line for a list of choices."""
        place = " ".join(filter(None, (self.check, self.tensor)))
        return (
            f"{self.candidate}: {self.status.value}"
            + (f" in {place}" if place else "")
            + (f", {self.cause}" if self.cause else "")
        )


@dataclass(frozen=True, slots=True)
class RouteCount:
    """How often a candidate took one route."""

    candidate: str
    asked: str
    backend: str
    reason: str
    count: int
    share: float
    """Of the candidate's calls that reported a route."""


@dataclass(slots=True)
class Overview:
    """All that the head of a report shows."""

    totals: Tally = field(default_factory=Tally)
    statuses: Counter[Status] = field(default_factory=Counter)
    candidates: dict[str, Tally] = field(default_factory=dict)
    checks: list[str] = field(default_factory=list)
    matrix: dict[tuple[str, str], Tally] = field(default_factory=dict)
    """(candidate, check) -> counts of findings."""
    groups: list[FailureGroup] = field(default_factory=list)
    routes: list[RouteCount] = field(default_factory=list)
    unrouted: Counter[str] = field(default_factory=Counter)
    """Candidate -> cases without a route (skipped, refused or ended before the reply)."""
    fallbacks: dict[str, float] = field(default_factory=dict)
    """Candidate -> share of its routed calls that fell back."""


def overview_of(records: Sequence[Record]) -> Overview:
    """Overview of a run."""
    found = Overview()
    checks: dict[str, None] = {}
    for record in records:
        comparisons = [c for finding in record.verdict.findings for c in finding.comparisons]
        found.statuses[record.verdict.status] += 1
        found.totals.add(record.verdict.status, comparisons)
        found.candidates.setdefault(record.candidate, Tally()).add(record.verdict.status, comparisons)
        for finding in record.verdict.findings:
            checks.setdefault(finding.check)
            cell = found.matrix.setdefault((record.candidate, finding.check), Tally())
            cell.add(finding.status, finding.comparisons)
    found.checks = list(checks)
    found.groups = failure_groups(records)
    _add_routes(found, records)
    return found


def failure_groups(records: Sequence[Record]) -> list[FailureGroup]:
    """Failures by candidate, status, check, tensor and first likely cause: gravest status first, then most frequent."""
    groups: dict[tuple[str, Status, str, str, str], FailureGroup] = {}
    for place, record in enumerate(records):
        if not record.verdict.status.is_failure:
            continue
        check, tensor = _culprit(record)
        cause = next(iter(record.verdict.likely_causes), "")
        key = (record.candidate, record.verdict.status, check, tensor, cause)
        group = groups.setdefault(key, FailureGroup(*key, example=record))
        group.places.append(place)
        ratio = worst_ratio(c for finding in record.verdict.findings for c in finding.comparisons)
        group.ratio = math.nan if math.isnan(ratio) or math.isnan(group.ratio) else max(group.ratio, ratio)
        if case_facts(record.case_id).size < case_facts(group.example.case_id).size:
            group.example = record
    order = {status: place for place, status in enumerate(Status)}
    return sorted(groups.values(), key=lambda group: (-group.count, order[group.status], group.candidate))


def deciding_finding(record: Record) -> Finding | None:
    """First finding with the status of the verdict."""
    return next((f for f in record.verdict.findings if f.status is record.verdict.status), None)


def environments(records: Iterable[Record]) -> list[Environment]:
    """Distinct environments in order of appearance."""
    return list({environment_key(record.environment): record.environment for record in records}.values())


def _culprit(record: Record) -> tuple[str, str]:
    """(check, tensor) that decided a failing verdict."""
    finding = deciding_finding(record)
    if finding is None:
        return "", ""
    rejected = [c for c in finding.comparisons if not c.accepted]
    worst = max(rejected, key=lambda c: math.inf if math.isnan(c.max_bound_ratio) else c.max_bound_ratio, default=None)
    return finding.check, worst.tensor if worst is not None else ""


def _add_routes(found: Overview, records: Iterable[Record]) -> None:
    counts: Counter[tuple[str, str, str, str]] = Counter()
    routed: Counter[str] = Counter()
    fallen: Counter[str] = Counter()
    for record in records:
        route = record.route
        if route is None:
            found.unrouted[record.candidate] += 1
            continue
        counts[record.candidate, route.asked or route.backend, route.backend, route.fallback_reason] += 1
        routed[record.candidate] += 1
        fallen[record.candidate] += bool(route.fallback_reason) or route.asked not in ("", route.backend)
    found.routes = [RouteCount(*key, count, count / routed[key[0]]) for key, count in sorted(counts.items())]
    found.fallbacks = {candidate: fallen[candidate] / routed[candidate] for candidate in sorted(routed)}
