"""`list`: what can be run and by which names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from verify.candidates import builtin_names, load
from verify.checks import CHECKS
from verify.commands.common import PROFILES, print_json
from verify.recipes import describe


def list_command(*, section: str | None, as_json: bool) -> None:
    """Print candidates, checks, recipes and profiles, or one of these sections."""
    data = {title: rows for title, rows in listing().items() if section in (None, title)}
    if as_json:
        print_json(data)
        return
    console = Console()
    for title, rows in data.items():
        for heading, part in _candidate_parts(rows) if title == "candidates" else [(title, rows)]:
            console.print(_table(heading, part))


def _candidate_parts(rows: list[dict[str, Any]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """What each candidate takes where it can run here, and why it cannot where it cannot."""
    ready = [row for row in rows if row["available"] == "yes"]
    takes = [
        {
            "name": row["name"],
            "dtypes": row["dtypes"],
            "computes": "forward, backward" if row["backward"] else "forward",
            "features": row["features"],
        }
        for row in ready
    ]
    absent = [{"name": row["name"], "reason": row["available"]} for row in rows if row["available"] != "yes"]
    yield from ((title, part) for title, part in (("candidates", takes), ("not available here", absent)) if part)


def _table(title: str, rows: list[dict[str, Any]]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in rows[0]:
        table.add_column(column, no_wrap=column in ("name", "calls"), overflow="fold")
    for row in rows:
        table.add_row(*(escape(str(value)) for value in row.values()))
    return table


def listing() -> dict[str, list[dict[str, Any]]]:
    """The same as data."""
    candidates = []
    for name in builtin_names():
        candidate = load(name)
        declared = candidate.contract.capabilities
        candidates.append(
            {
                "name": name,
                "available": candidate.unavailable() or "yes",
                "dtypes": " ".join(sorted(declared.dtypes)),
                "features": " ".join(sorted(declared.features)),
                "backward": declared.backward,
            }
        )
    checks = [
        {
            "name": check.name,
            "summary": check.summary,
            "calls": check.calls,
            "statuses": " ".join(check.raises) if len(check.raises) < 10 else "any",
        }
        for check in CHECKS.values()
    ]
    recipes = [{"name": entry.name, "values": entry.summary, "targets": entry.targets} for entry in describe()]
    profiles = [{"name": name, "summary": summary} for name, summary in PROFILES.items()]
    return {"candidates": candidates, "checks": checks, "recipes": recipes, "profiles": profiles}
