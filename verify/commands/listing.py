"""`list`: what can be run and by which names."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from verify.candidates import builtin_names, load
from verify.checks import CHECKS
from verify.commands.common import PROFILES, print_json
from verify.recipes import describe


def list_command(*, as_json: bool) -> None:
    """Print candidates, checks, recipes and profiles."""
    data = listing()
    if as_json:
        print_json(data)
        return
    console = Console()
    for title, rows in data.items():
        table = Table(title=title, title_justify="left", show_header=True)
        for column in rows[0]:
            table.add_column(column, no_wrap=column in ("name", "calls"))
        for row in rows:
            table.add_row(*(str(value) for value in row.values()))
        console.print(table)


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
