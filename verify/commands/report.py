"""`report`: the report of journals, whether or not their runs came to an end."""

from __future__ import annotations

from pathlib import Path

from verify.errors import require
from verify.journal import read_records
from verify.report import write_report


def report_command(*, paths: tuple[Path, ...], out: Path) -> None:
    """Read the journals, keep the last record of each case and candidate, and write the report."""
    latest = {(record.case_id, record.candidate): record for path in paths for record in read_records(path)}
    require(bool(latest), "records", [str(path) for path in paths], "at least one complete record")
    written = write_report(
        list(latest.values()),
        out / "report",
        title="report of " + ", ".join(path.name for path in paths),
        command="python -m verify report " + " ".join(str(path) for path in paths),
    )
    print(f"report: {written.html}")
