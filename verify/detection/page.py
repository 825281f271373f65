"""The score as a Markdown page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def markdown(summary: Mapping[str, Any]) -> str:
    """Page of one self-test: score, kinds, checks, survivors, honesty, rules of others, every result."""
    return "\n".join(_lines(summary)) + "\n"


def _lines(summary: Mapping[str, Any]) -> Iterator[str]:
    yield f"# Self-test, {summary['profile']} profile"
    yield ""
    if "hunts" in summary:
        yield from _hunt_points(summary["hunts"])
    if "honesty" in summary:
        yield from _honesty_points(summary["honesty"])
    if "fuzz" in summary:
        yield from _fuzz_points(summary["fuzz"])
    for part, facts in summary["parts"].items():
        yield f"- {part}: {facts['seconds']} s in {facts['jobs']} processes, {facts['started_at']}"
    if "hunts" in summary:
        yield from _hunt_tables(summary["hunts"])
    if "honesty" in summary:
        yield from _honesty_tables(summary["honesty"])
    if "fuzz" in summary:
        yield from _fuzz_table(summary["fuzz"]["trials"])
    for dtype, duel in summary.get("rules", {}).items():
        yield from _duel(dtype, duel)
    if "hunts" in summary:
        yield from _results(summary["hunts"]["results"])


def _hunt_points(hunts: Mapping[str, Any]) -> Iterator[str]:
    mutants, impostors, causes = hunts["mutants"], hunts["impostors"], hunts["causes"]
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
    if hunts["not_hunted"]:
        yield f"- cut short, not hunted: {len(hunts['not_hunted'])}"


def _honesty_points(honesty: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"- false alarms: {len(honesty['false_alarms'])} in {honesty['case_checks']} honest case-checks "
        f"on {sum(honesty['cases'].values())} cases"
    )
    yield f"- known deviations of libraries: {len(honesty['known_deviations'])}"
    if honesty["ended"]:
        yield f"- the honest case-checks ended before the {honesty['wanted']} wanted: {honesty['ended']}"
    for candidate, reason in honesty["left_out"].items():
        yield f"- left out: {candidate} ({reason})"


def _fuzz_points(fuzz: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"- fuzzing from a cold start found {fuzz['found']} of {fuzz['tried']} mutants, "
        f"median {fuzz['median_seconds']} s, longest {fuzz['largest_seconds']} s; "
        f"{fuzz['small']} minimised cases have at most {fuzz['limits']['scores']} scores "
        f"and {fuzz['limits']['nonzero']} values of q and k that are not zero"
    )


def _fuzz_table(trials: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    rows = [
        (
            trial["mutant"],
            trial["kind"],
            "not found" if trial["seconds"] is None else trial["seconds"],
            trial["examples"],
            trial["check"],
            trial["case_id"],
            f"{trial['rows']} x {trial['keys']}",
            trial["nonzero"],
        )
        for trial in trials
    ]
    names = ("mutant", "kind", "seconds", "examples", "check", "minimised case", "rows x keys", "non-zeros")
    yield from _table("Fuzzing", names, rows)


def _hunt_tables(hunts: Mapping[str, Any]) -> Iterator[str]:
    kinds = [(kind, row["counted"], row["killed"]) for kind, row in hunts["by_kind"].items()]
    yield from _table("Kinds", ("kind", "mutants", "killed"), kinds)
    yield ""
    yield "No mutant: " + "; ".join(f"{kind} ({why})" for kind, why in hunts["kinds_without_kernel"].items())
    yield from _table("Checks", ("check", "kills"), list(hunts["by_check"].items()))
    survivors = [(s["name"], s["kind"], s["reason"]) for s in hunts["survivors"]]
    yield from _table("Survivors", ("name", "kind", "reason"), survivors)
    proofs = [(entry["name"], entry["proof"]) for entry in hunts["mutants"]["equivalent"]]
    yield from _table("Equivalent mutants", ("name", "proof"), proofs)


def _results(results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    heads = ("name", "kind", "outcome", "check", "status", "cases", "seconds", "case")
    yield from _table("Results", heads, [tuple(r.get(head, "") for head in heads) for r in results])


def _honesty_tables(honesty: Mapping[str, Any]) -> Iterator[str]:
    table = honesty["case_checks_by_candidate_and_dtype"]
    checks = list(dict.fromkeys(check for row in table.values() for check in row))
    rows = [(name, *(row.get(check, 0) for check in checks)) for name, row in table.items()]
    yield from _table("Honest case-checks", ("candidate", *checks), rows)
    yield from _table("Milliseconds a case-check", ("candidate", "ms"), list(honesty["ms_a_case_check"].items()))
    yield from _table("Cases by source", ("source", "cases"), list(honesty["cases"].items()))
    alarms = [(a["candidate"], a["check"], a["status"], a["case"]) for a in honesty["false_alarms"]]
    yield from _table("False alarms", ("candidate", "check", "status", "case"), alarms)
    known = Counter((k["candidate"], k["check"], k["reason"]) for k in honesty["known_deviations"])
    rows = [(*which, count) for which, count in known.items()]
    yield from _table("Known deviations", ("candidate", "check", "reason", "case-checks"), rows)


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
