"""From hunts to the score: killed and survived by kind and by check, causes named, as one JSON-ready mapping."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from verify.detection.bench import FalseAlarm
from verify.detection.campaign import IMPOSTOR, MUTANT
from verify.detection.duel import RULE_NAMES, Tally
from verify.detection.honesty import Honesty
from verify.detection.hunt import Hunt
from verify.detection.mutant import KINDS, Mutant
from verify.detection.mutants import catalogue
from verify.detection.survivors import reason_of

NO_KERNEL = {
    "split-merge": "no kernel here combines splits",
    "paged-cache": "no kernel here walks a page table",
}
"""Kinds of the taxonomy without a mutant, and why."""
NAMED = 3
"""Causes that an explanation names at most."""


def score(hunts: Sequence[Hunt]) -> dict[str, Any]:
    """Everything that the report says about mutants and impostors."""
    mutants = {h.name: (_mutant(h), h) for h in hunts if h.name.startswith(MUTANT)}
    counted = [(m, h) for m, h in mutants.values() if m.counted]
    killed = [(m, h) for m, h in counted if h.kill is not None]
    impostors = [h for h in hunts if h.name.startswith(IMPOSTOR)]
    return {
        "mutants": {
            "tried": len(mutants),
            "counted": len(counted),
            "killed": len(killed),
            "share_killed": round(len(killed) / len(counted), 4) if counted else None,
            "broken": [{"name": h.name, "reason": h.broken} for h in hunts if h.broken],
            "below_rounding": _aside([(m, h) for m, h in mutants.values() if m.below_rounding]),
            "equivalent": [
                {"name": m.name, "proof": m.equivalent, "killed": h.kill is not None}
                for m, h in mutants.values()
                if m.equivalent
            ],
        },
        "impostors": {"tried": len(impostors), "killed": sum(h.kill is not None for h in impostors)},
        "by_kind": _by_kind(counted),
        "kinds_without_kernel": NO_KERNEL,
        "by_check": _by_check([h for _, h in counted] + impostors),
        "by_stage": dict(Counter(h.stage for _, h in killed)),
        "causes": _causes(killed),
        "survivors": [
            {"name": h.name, "kind": m.kind, "reason": reason_of(m.name)}
            for m, h in counted
            if not (h.kill or h.broken)
        ]
        + [{"name": h.name, "kind": "impostor", "reason": reason_of(h.name)} for h in impostors if h.kill is None],
        "results": [_row(h) for h in hunts],
    }


def honesty_summary(honesty: Honesty) -> dict[str, Any]:
    """The false-alarm campaign as JSON."""
    table: dict[str, dict[str, int]] = {}
    by_candidate: Counter[str] = Counter()
    for (candidate, dtype, check), count in sorted(honesty.by_place.items()):
        table.setdefault(f"{candidate} {dtype}", {})[check] = count
        by_candidate[candidate] += count
    return {
        "wanted": honesty.wanted,
        "case_checks": honesty.case_checks,
        "ended": honesty.ended,
        "cases": dict(honesty.cases),
        "false_alarms": [_deviation(alarm) for alarm in honesty.alarms],
        "known_deviations": [_deviation(known) for known in honesty.known],
        "case_checks_by_candidate_and_dtype": table,
        "ms_a_case_check": {
            candidate: round(1e3 * honesty.seconds.get(candidate, 0.0) / count, 1)
            for candidate, count in by_candidate.items()
        },
        "left_out": honesty.left_out,
    }


def _deviation(alarm: FalseAlarm) -> dict[str, str]:
    return {
        "candidate": alarm.candidate,
        "case": alarm.case_id,
        "check": alarm.check,
        "status": alarm.status,
        "reason": alarm.reason,
    }


def duel_summary(tally: Tally, honest_alarms: Mapping[str, int], honest_cases: int) -> dict[str, Any]:
    """The rules of others beside the derived bounds as JSON."""
    rows = {
        name: {
            "rejected": tally.rejected.get(name, 0),
            "told_apart": tally.told_apart.get(name, 0),
            "killed": tally.killed.get(name, 0),
            "false_alarms": honest_alarms.get(name, 0),
        }
        for name in RULE_NAMES
    }
    return {"instances": tally.instances, "targets": tally.targets, "honest_cases": honest_cases, "rules": rows}


def _mutant(found: Hunt) -> Mutant:
    return catalogue()[found.name.removeprefix(MUTANT)]


def _aside(pairs: Sequence[tuple[Mutant, Hunt]]) -> dict[str, Any]:
    names = {m.name: h.kill is not None for m, h in pairs}
    return {"tried": len(names), "killed": sum(names.values()), "names": names}


def _by_kind(counted: Sequence[tuple[Mutant, Hunt]]) -> dict[str, dict[str, int]]:
    rows = {kind: {"counted": 0, "killed": 0} for kind in KINDS}
    for mutant, found in counted:
        rows[mutant.kind]["counted"] += 1
        rows[mutant.kind]["killed"] += found.kill is not None
    return {kind: row for kind, row in rows.items() if row["counted"]}


def _by_check(hunts: Sequence[Hunt]) -> dict[str, int]:
    return dict(Counter(h.kill.check for h in hunts if h.kill is not None).most_common())


def _causes(killed: Sequence[tuple[Mutant, Hunt]]) -> dict[str, Any]:
    places = [h.kill.causes.index(m.cause) if h.kill and m.cause in h.kill.causes else NAMED for m, h in killed]
    first, among = sum(place == 0 for place in places), sum(place < NAMED for place in places)
    return {
        "explained": len(places),
        "first": first,
        "among_three": among,
        "share_among_three": round(among / len(places), 4) if places else None,
        "missed": [
            {"name": m.name, "expected": m.cause, "named": list(h.kill.causes) if h.kill else []}
            for (m, h), place in zip(killed, places, strict=True)
            if place == NAMED
        ],
    }


def _row(found: Hunt) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": found.name,
        "stage": found.stage,
        "cases": found.cases,
        "seconds": round(found.seconds, 2),
        "outcome": "killed" if found.kill else ("broken" if found.broken else "survived"),
    }
    if found.name.startswith(MUTANT):
        mutant = _mutant(found)
        row |= {"kind": mutant.kind, "direction": mutant.direction, "report": mutant.report, "url": mutant.url}
    if found.kill is not None:
        row |= {"check": found.kill.check, "status": str(found.kill.status), "case": found.kill.case_id}
        row |= {"causes": list(found.kill.causes)}
    return row
