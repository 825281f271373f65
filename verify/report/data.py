"""The report datum: records as dictionary-coded columns, ready for JSON. No HTML, no files, no statistics."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from verify.record import Record
from verify.report.error_map import encode_map
from verify.report.facts import case_facts, environment_key
from verify.report.overview import failure_groups
from verify.verdict import Comparison, Status

DATA_VERSION = 1
ELEMENT_BUDGET = 30_000
"""Worst elements that a page carries: about 0.8 MB compressed. Rejected comparisons are served first."""
MAP_BUDGET = 1_500
"""Error maps that a page carries: about 1 MB compressed."""
RATIO_DIGITS = 4
METRIC_DIGITS = 3
VALUE_DIGITS = 9
"""Nine significant digits tell any two fp32 values apart."""

Json = Any
_COUNTS = ("n_total", "n_exceeding", "nan_mismatch", "posinf_mismatch", "neginf_mismatch", "nan_count", "inf_count")
_METRICS = ("max_abs", "max_rel", "rms", "rel_l2", "bias", "max_ulp", "saturated")


class Vocabulary:
    """Distinct values in order of first appearance; a value is stored once and referred to by its place."""

    def __init__(self) -> None:
        self._codes: dict[Hashable, int] = {}

    def code(self, value: Hashable) -> int:
        """Place of a value, which is added when new."""
        return self._codes.setdefault(value, len(self._codes))

    def codes(self, values: Iterable[Hashable]) -> list[int]:
        """Places of several values."""
        return [self.code(value) for value in values]

    def values(self) -> list[Hashable]:
        """All values, by place."""
        return list(self._codes)


def number(value: float, digits: int) -> float | int | str:
    """JSON number with so many significant digits; "nan", "inf" or "-inf" as text."""
    if not math.isfinite(value):
        return str(float(value))
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e6 else rounded


def report_data(records: Sequence[Record], *, title: str, command: str) -> dict[str, Json]:
    """Datum of a report: vocabularies, and the tables records > findings > comparisons > elements as columns.

    A parent row says how many child rows follow for it (`n_findings`, `n_comparisons`, `n_elements`), so no table
    repeats keys. Cosine and gain are stored as their distance from 1, which keeps the digits that matter.
    """
    return _Builder(records).build(title, command)


class _Builder:
    def __init__(self, records: Sequence[Record]) -> None:
        self.rows = records
        names = "run candidate source dtype shape recipe features origin route environment check tensor text"
        self.vocabulary = {name: Vocabulary() for name in names.split()}
        self.records: dict[str, list[Json]] = {}
        self.findings: dict[str, list[Json]] = {}
        self.comparisons: dict[str, list[Json]] = {}
        self.elements: dict[str, list[Json]] = {}
        comparisons = [c for record in records for finding in record.verdict.findings for c in finding.comparisons]
        self.kept_elements = _allot([(c, len(c.worst)) for c in comparisons], ELEMENT_BUDGET)
        maps = [(c, int(bool(c.error_map) and not c.accepted)) for c in comparisons]
        self.kept_maps = _allot(maps, MAP_BUDGET)
        self.groups = failure_groups(records)
        self.group_of = {place: code for code, group in enumerate(self.groups) for place in group.places}
        self.wanted = {"elements": sum(len(c.worst) for c in comparisons), "maps": sum(n for _, n in maps)}

    def build(self, title: str, command: str) -> dict[str, Json]:
        for place, record in enumerate(self.rows):
            self._add_record(place, record)
        started = sorted(record.started_at for record in self.rows)
        return {
            "version": DATA_VERSION,
            "title": title,
            "command": command,
            "started_at": [started[0], started[-1]] if started else [],
            "statuses": [[status.value, status.is_failure] for status in Status],
            "groups": [group.label for group in self.groups],
            "vocabulary": {name: vocabulary.values() for name, vocabulary in self.vocabulary.items()},
            "records": self.records,
            "findings": self.findings,
            "comparisons": self.comparisons,
            "elements": self.elements,
            "kept": {"elements": len(self.elements.get("got", [])), "maps": sum(self.kept_maps)},
            "wanted": self.wanted,
        }

    def _add_record(self, place: int, record: Record) -> None:
        facts = case_facts(record.case_id)
        timing = record.timing
        coded: dict[str, Hashable] = {
            "run": record.run_id,
            "candidate": record.candidate,
            "source": record.source_hash,
            "dtype": facts.dtype,
            "shape": facts.shape,
            "recipe": record.recipe,
            "features": tuple(record.features),
            "origin": record.origin,
            "route": _route_key(record),
            "environment": environment_key(record.environment),
        }
        row: dict[str, Json] = {name: self.vocabulary[name].code(value) for name, value in coded.items()}
        row["status"] = _status_code(record.verdict.status)
        row["group"] = self.group_of.get(place, -1)
        row["case_id"] = record.case_id
        row["started_at"] = record.started_at
        row["causes"] = self.vocabulary["text"].codes(record.verdict.likely_causes)
        total_ms = timing.candidate_ms + timing.reference_ms + timing.bound_ms + timing.checks_ms
        row["candidate_ms"] = number(timing.candidate_ms, METRIC_DIGITS)
        row["total_ms"] = number(total_ms, METRIC_DIGITS)
        row["n_findings"] = len(record.verdict.findings)
        _append(self.records, row)
        for finding in record.verdict.findings:
            row = {
                "check": self.vocabulary["check"].code(finding.check),
                "status": _status_code(finding.status),
                "reasons": self.vocabulary["text"].codes(finding.reasons),
                "ms": number(finding.duration_ms, METRIC_DIGITS),
                "n_comparisons": len(finding.comparisons),
            }
            _append(self.findings, row)
            for comparison in finding.comparisons:
                self._add_comparison(comparison)

    def _add_comparison(self, c: Comparison) -> None:
        place = len(self.comparisons.get("tensor", ()))
        worst = c.worst[: self.kept_elements[place]]
        text = self.vocabulary["text"]
        has_map = bool(self.kept_maps[place])
        row: dict[str, Json] = {name: getattr(c, name) for name in _COUNTS}
        row |= {name: number(getattr(c, name), METRIC_DIGITS) for name in _METRICS}
        row["gain_minus_1"] = number(c.gain - 1.0, METRIC_DIGITS)
        row["one_minus_cosine"] = number(1.0 - c.cosine, METRIC_DIGITS)
        row["ratio"] = number(c.max_bound_ratio, RATIO_DIGITS)
        row["tensor"] = self.vocabulary["tensor"].code(c.tensor)
        row["pattern"] = text.code(c.pattern)
        row["flags"] = c.accepted + 2 * c.fixed_limits_ok + 4 * c.shape_ok + 8 * c.dtype_ok
        row["map"] = encode_map(c.error_map) if has_map else 0
        row["axes"] = text.codes(c.map_axes) if has_map else 0
        row["n_elements"] = len(worst)
        _append(self.comparisons, row)
        for element in worst:
            row = {
                "index": list(element.index),
                "tile": list(element.tile),
                "got": number(element.got, VALUE_DIGITS),
                "expected": number(element.expected, VALUE_DIGITS),
                "bound": number(element.bound, RATIO_DIGITS),
                "ratio": number(element.ratio, RATIO_DIGITS),
            }
            _append(self.elements, row)


def _route_key(record: Record) -> Hashable:
    route = record.route
    if route is None:
        return None
    return route.backend, route.asked, route.fallback_reason, tuple(sorted(route.details.items()))


_STATUS_CODES: Mapping[Status, int] = {status: place for place, status in enumerate(Status)}


def _status_code(status: Status) -> int:
    return _STATUS_CODES[Status(status)]


def _append(table: dict[str, list[Json]], row: Mapping[str, Json]) -> None:
    for name, value in row.items():
        table.setdefault(name, []).append(value)


def _allot(demands: Sequence[tuple[Comparison, int]], budget: int) -> list[int]:
    """Share of the budget for each comparison: rejected ones first, then by error/bound, in full while it lasts."""

    def urgency(place: int) -> tuple[bool, float]:
        comparison = demands[place][0]
        ratio = comparison.max_bound_ratio
        return comparison.accepted, -math.inf if math.isnan(ratio) else -ratio

    allotted = [0] * len(demands)
    for place in sorted(range(len(demands)), key=urgency):
        allotted[place] = min(demands[place][1], budget)
        budget -= allotted[place]
    return allotted
