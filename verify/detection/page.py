"""The score as a Markdown page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def markdown(summary: Mapping[str, Any]) -> str:
    """Page of one self-test: score, kinds, checks, survivors, honesty, rules of others, every result."""
    return "\n".join(_lines(summary)) + "\n"


def _lines(summary: Mapping[str, Any]) -> Iterator[str]:
    mutants, impostors, causes = summary["mutants"], summary["impostors"], summary["causes"]
    yield f"# Self-test, {summary['profile']} profile"
    yield ""
    yield f"- mutants killed: {mutants['killed']} of {mutants['counted']} ({_percent(mutants['share_killed'])})"
    aside = mutants["below_rounding"]
    yield f"- below the rounding of the outputs, counted apart: {aside['killed']} of {aside['tried']} killed"
    refuted = sum(entry["killed"] for entry in mutants["equivalent"])
    yield f"- equivalent: {len(mutants['equivalent'])}, of which killed: {refuted}"
    yield f"- impostors killed: {impostors['killed']} of {impostors['tried']}"
    yield (
        f"- cause named first: {causes['first']} of {causes['explained']}, among the first three: "
        f"{causes['among_three']} ({_percent(causes['share_among_three'])})"
    )
    if "honesty" in summary:
        honesty = summary["honesty"]
        yield f"- false alarms: {len(honesty['false_alarms'])} in {honesty['case_checks']} honest case-checks"
    yield f"- seconds: {summary['seconds']}"
    yield from _table(
        "Kinds", ("kind", "mutants", "killed"), [(k, r["counted"], r["killed"]) for k, r in summary["by_kind"].items()]
    )
    yield ""
    yield "No mutant: " + "; ".join(f"{kind} ({why})" for kind, why in summary["kinds_without_kernel"].items())
    yield from _table("Checks", ("check", "kills"), list(summary["by_check"].items()))
    yield from _table(
        "Survivors", ("name", "kind", "reason"), [(s["name"], s["kind"], s["reason"]) for s in summary["survivors"]]
    )
    proofs = [(e["name"], e["proof"]) for e in mutants["equivalent"]]
    yield from _table("Equivalent mutants", ("name", "proof"), proofs)
    if "honesty" in summary:
        yield from _honesty(summary["honesty"])
    for dtype, duel in summary.get("rules", {}).items():
        yield from _duel(dtype, duel)
    rows = [
        (r["name"], r.get("kind", ""), r["outcome"], r.get("check", ""), r.get("status", ""), r["cases"], r["seconds"])
        for r in summary["results"]
    ]
    yield from _table("Results", ("name", "kind", "outcome", "check", "status", "cases", "seconds"), rows)


def _honesty(honesty: Mapping[str, Any]) -> Iterator[str]:
    table = honesty["case_checks_by_candidate_and_dtype"]
    checks = list(dict.fromkeys(check for row in table.values() for check in row))
    rows = [(name, *(row.get(check, 0) for check in checks)) for name, row in table.items()]
    yield from _table("Honest case-checks", ("candidate", *checks), rows)
    alarms = [(a["candidate"], a["check"], a["status"], a["case"]) for a in honesty["false_alarms"]]
    yield from _table("False alarms", ("candidate", "check", "status", "case"), alarms)


def _duel(dtype: str, duel: Mapping[str, Any]) -> Iterator[str]:
    n, honest = duel["instances"], duel["honest_cases"]
    rows = [
        (
            name,
            _share(r["rejected"], n),
            _share(r["told_apart"], n),
            f"{r['killed']}/{duel['targets']}",
            f"{r['false_alarms']}/{honest}",
        )
        for name, r in duel["rules"].items()
    ]
    heads = ("rule", "rejected", "told apart", "mutants told apart at least once", "false alarms")
    yield from _table(f"Rules of others, {dtype}: {n} instances", heads, rows)


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> Iterator[str]:
    yield ""
    yield f"## {title}"
    yield ""
    if not rows:
        yield "none"
        return
    yield "| " + " | ".join(heads) + " |"
    yield "|" + "---|" * len(heads)
    for row in rows:
        yield "| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |"


def _share(count: int, total: int) -> str:
    return f"{100 * count / total:.0f} %" if total else "-"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"
