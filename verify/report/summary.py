"""The Markdown summary for a CI job: small, and whole at any number of records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from verify.record import Record
from verify.report.facts import environment_key, replay_command
from verify.report.overview import FailureGroup, Overview, Tally, deciding_finding, environments, overview_of
from verify.report.text import clip, markdown_code, markdown_line, show_number

MAX_GROUPS = 20
"""Failure groups with a replay command; the page has them all."""
MAX_CANDIDATES = 100
MAX_CHECKS = 30
MAX_ROUTES = 100
MAX_FACTS = 60
MAX_COMMAND = 4_000
"""Characters; job summaries are refused above 1 MiB as a whole, so every part has its own limit."""


def summary_markdown(records: Sequence[Record], *, title: str, command: str) -> str:
    """Totals, matrix, failures with their replay lines, routes and environment; below 1 MB for any input."""
    overview = overview_of(records)
    environment = Environment(
        loader=PackageLoader("verify.report"),
        autoescape=False,  # Markdown: every text goes through the `md` or the `code` filter
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"md": markdown_line, "code": markdown_code, "number": show_number}
    return environment.get_template("summary.md.j2").render(
        title=title,
        command=clip(command, MAX_COMMAND),
        overview=overview,
        run_ids=list(dict.fromkeys(record.run_id for record in records))[:MAX_FACTS],
        started_at=min((record.started_at for record in records), default="never"),
        candidates=list(overview.candidates)[:MAX_CANDIDATES],
        checks=overview.checks[:MAX_CHECKS],
        rows=_matrix_rows(overview),
        groups=[_group_view(group) for group in overview.groups[:MAX_GROUPS]],
        routes=overview.routes[:MAX_ROUTES],
        fallbacks=list(overview.fallbacks.items())[:MAX_CANDIDATES],
        inf=math.inf,
        environments=[environment_key(found)[:MAX_FACTS] for found in environments(records)[:3]],
    )


def _matrix_rows(overview: Overview) -> list[tuple[str, list[str]]]:
    return [
        (candidate, [_cell(overview.matrix.get((candidate, check))) for check in overview.checks[:MAX_CHECKS]])
        for candidate in list(overview.candidates)[:MAX_CANDIDATES]
    ]


def _cell(tally: Tally | None) -> str:
    if tally is None:
        return "–"
    failed = [f"**{tally.failed} failed**"] if tally.failed else []
    others = {"passed": tally.passed, "unsupported": tally.skipped, "powerless": tally.powerless}
    parts = failed + [f"{count} {word}" for word, count in others.items() if count]
    ratio = f" ({show_number(tally.ratio)})" if tally.ratio != -math.inf else ""
    return ", ".join(parts) + ratio


def _group_view(group: FailureGroup) -> dict[str, Any]:
    finding = deciding_finding(group.example)
    return {
        "group": group,
        "reasons": finding.reasons[:3] if finding is not None else (),
        "pattern": _pattern(group),
        "command": clip(replay_command(group.example.case_id, group.example.candidate), MAX_COMMAND),
    }


def _pattern(group: FailureGroup) -> str:
    comparisons = (
        c for finding in group.example.verdict.findings if finding.check == group.check for c in finding.comparisons
    )
    return next((c.pattern for c in comparisons if c.tensor == group.tensor and c.pattern), "")
