"""What a person sees in the terminal: the matrix, one failing case in full. Formats records, decides nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from verify.compare import N_WORST
from verify.record import Record
from verify.verdict import Comparison, Finding, Status

SHOWN_REASONS = 14
"""Further lines of a finding: enough for a traceback."""
SHOWN_WORST = 3
"""Worst elements of a tensor in the summary of a run; `repro` and the report show all that a comparison keeps."""


def matrices(records: Sequence[Record], *, width: int) -> Iterator[Table]:
    """Candidates x checks: right/judged, failures in red, worst error over bound below; split to fit the width."""
    checks = list(dict.fromkeys(f.check for r in records for f in r.verdict.findings if f.check != "capabilities"))
    names = list(dict.fromkeys(record.candidate for record in records))
    first = max([len("candidate"), *map(len, names)])
    block: list[str] = []
    used = first
    for check in checks:
        needed = max(len(check), len("1000/1000")) + 1
        if block and used + needed > width:
            yield _matrix(records, names, block, title=block[0] == checks[0])
            block, used = [], first
        block.append(check)
        used += needed
    yield _matrix(records, names, block, title=not checks or block[0] == checks[0])


def _matrix(records: Sequence[Record], names: Sequence[str], checks: Sequence[str], *, title: bool) -> Table:
    heading = "cases right / judged, and the worst error/bound" if title else None
    table = Table(title=heading, title_justify="left", box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("candidate", no_wrap=True)
    for check in checks:
        table.add_column(check, justify="right", no_wrap=True)
    for name in names:
        mine = [record for record in records if record.candidate == name]
        cells = [_cell([f for r in mine for f in r.verdict.findings if f.check == check]) for check in checks]
        table.add_row(name, *cells)
    return table


def skipped_line(records: Sequence[Record]) -> str:
    """One line: how many cases each candidate does not declare."""
    skipped = Counter(r.candidate for r in records if r.verdict.status is Status.UNSUPPORTED)
    return "not declared, so skipped: " + (", ".join(f"{name} {count}" for name, count in skipped.items()) or "none")


def _cell(findings: Sequence[Finding]) -> Text:
    judged = [finding for finding in findings if finding.status is not Status.UNSUPPORTED]
    if not judged:
        return Text("-", style="dim")
    failed = sum(finding.status.is_failure for finding in judged)
    ratios = [c.max_bound_ratio for f in judged for c in f.comparisons if c.n_total]
    worst = f"\n{max(ratios):.2g}" if ratios else ""
    return Text(f"{len(judged) - failed}/{len(judged)}{worst}", style="bold red" if failed else "green")


def totals_line(records: Sequence[Record]) -> str:
    """One line: how many cases x candidates ended in which status."""
    counts = Counter(record.verdict.status for record in records)
    parts = [f"{counts[status]} {status}" for status in Status if counts[status]]
    return f"{len(records)} cases x candidates: " + ", ".join(parts or ["none"])


def repro_line(record: Record) -> str:
    """The command that repeats one case."""
    return f"python -m verify repro '{record.case_id}' --candidate {record.candidate}"


def failure_lines(record: Record, *, worst: int = N_WORST) -> Iterator[str]:
    """One failing case: verdict, replay line, route, checks, errors with the worst elements of each tensor, causes."""
    verdict = record.verdict
    yield f"{verdict.status}  {record.candidate}  [{record.recipe}; {', '.join(record.features) or 'plain'}]"
    yield f"  replay  {repro_line(record)}"
    if record.route is not None:
        fallback = (
            f", asked {record.route.asked}: {record.route.fallback_reason}" if record.route.fallback_reason else ""
        )
        yield f"  route   {record.route.backend}{fallback}"
    width = max([len(finding.check) for finding in verdict.findings], default=0) + 2
    for finding in verdict.findings:
        first, *others = finding.reasons or ("",)
        yield f"  {finding.check:<{width}}{finding.status}  {first}".rstrip()
        for reason in others[:SHOWN_REASONS]:
            yield f"  {'':<{width}}{reason}"
        if len(others) > SHOWN_REASONS:
            yield f"  {'':<{width}}and {len(others) - SHOWN_REASONS} more lines"
        for comparison in finding.comparisons:
            if not comparison.accepted:
                yield from (f"    {line}" for line in comparison_lines(comparison, worst=worst))
    for place, cause in enumerate(verdict.likely_causes, start=1):
        yield f"  cause {place}  {cause}"


def comparison_lines(c: Comparison, *, worst: int = N_WORST) -> Iterator[str]:
    """Metrics of one comparison and its worst elements."""
    yield (
        f"{c.tensor}: {c.n_exceeding} of {c.n_total} beyond the bound, max error/bound {c.max_bound_ratio:.3g}, "
        f"NaN/+inf/-inf differing {c.nan_mismatch}/{c.posinf_mismatch}/{c.neginf_mismatch}"
    )
    yield (
        f"max abs {c.max_abs:.3g}, max rel {c.max_rel:.3g}, rms {c.rms:.3g}, rel L2 {c.rel_l2:.3g}, gain {c.gain:.6g}, "
        f"bias {c.bias:.2g}, cosine {c.cosine:.7g}, max ulp {c.max_ulp:.3g}"
    )
    for element in c.worst[:worst]:
        if not element.ratio <= 1:
            index = ",".join(map(str, element.index))
            yield (
                f"[{index}] tile {element.tile[0]},{element.tile[1]}: got {element.got:.9g}, "
                f"expected {element.expected:.9g}, bound {element.bound:.3g}, error/bound {element.ratio:.3g}"
            )


def print_failures(console: Console, records: Sequence[Record], *, limit: int) -> None:
    """The first failing cases in full and how many more there are, one candidate after another."""
    failing = [record for record in records if record.verdict.status.is_failure]
    shown = _spread(failing, limit)
    for record in shown:
        console.print()
        for line in failure_lines(record, worst=SHOWN_WORST):
            console.print(Text(line, style="red" if not line.startswith(" ") else ""), soft_wrap=True)
    if len(failing) > len(shown):
        console.print(f"\n{len(failing) - len(shown)} more failing cases are in the report")


def _spread(failing: Sequence[Record], limit: int) -> list[Record]:
    """At most `limit` records that show as many candidates and statuses as possible."""
    first: dict[tuple[str, Status], Record] = {}
    for record in failing:
        first.setdefault((record.candidate, record.verdict.status), record)
    chosen = list(first.values())[:limit]
    rest = [record for record in failing if record not in chosen]
    return chosen + rest[: max(0, limit - len(chosen))]
