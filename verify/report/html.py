"""The report page: one HTML file that needs neither network nor server; and the writing of all three files."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from verify.record import Record
from verify.report.data import report_data
from verify.report.facts import environment_key, replay_command
from verify.report.files import write_together
from verify.report.junit import junit_xml
from verify.report.overview import environments, overview_of
from verify.report.summary import summary_markdown
from verify.report.text import show_number

SCRIPTS = ("dom.js", "data.js", "filters.js", "matrix.js", "detail.js", "cases.js", "plots.js", "main.js")
"""In the order in which they depend on each other."""
PLAIN_LIMIT = 2_000_000
"""Characters of JSON above which the datum is embedded as gzip in base64 (about 2.5 to 4 times smaller)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportPaths:
    """Files of a written report."""

    html: Path
    summary: Path
    junit: Path


def write_report(records: Sequence[Record], directory: Path, *, title: str, command: str) -> ReportPaths:
    """Write index.html, summary.md and junit.xml into `directory`, all or nothing.

    Parameters
    ----------
    records
        Records of one run, or of several that are to be shown together.
    directory
        Made when missing; other files in it are left alone.
    title
        Heading of the page and of the summary.
    command
        Command line that made the records, shown for repetition.

    Raises
    ------
    UsageError
        If `directory` is a file.
    OSError
        If the files cannot be written; the old ones are then still there.
    """
    texts = {
        "index.html": html_page(records, title=title, command=command),
        "summary.md": summary_markdown(records, title=title, command=command),
        "junit.xml": junit_xml(records, title=title, command=command),
    }
    write_together(directory, texts)
    return ReportPaths(html=directory / "index.html", summary=directory / "summary.md", junit=directory / "junit.xml")


def html_page(records: Sequence[Record], *, title: str, command: str) -> str:
    """The page as text. Nothing in it is executed but the report's own script, whose hash the page's policy names."""
    environment = Environment(loader=PackageLoader("verify.report"), autoescape=True, undefined=StrictUndefined)
    environment.filters |= {"number": show_number}
    script = "\n".join(_static(name) for name in SCRIPTS)
    encoding, payload = embed_json(report_data(records, title=title, command=command))
    return environment.get_template("index.html.j2").render(
        title=title,
        command=command,
        overview=overview_of(records),
        run_ids=list(dict.fromkeys(record.run_id for record in records)),
        started_at=sorted({record.started_at for record in records}),
        environments=[environment_key(found) for found in environments(records)],
        replay_command=replay_command,
        infinity=math.inf,
        style=Markup(_static("report.css")),  # our own file
        script=Markup(script),  # our own files
        script_hash=base64.b64encode(hashlib.sha256(_normal(script).encode()).digest()).decode("ascii"),
        encoding=encoding,
        payload=Markup(payload),  # JSON without <, > and &, or base64
    )


def embed_json(datum: Mapping[str, Any]) -> tuple[str, str]:
    """(encoding, text) of a datum for a script element of type application/json; encoding is `json` or `gzip`.

    The text has no `<`, `>` or `&`, so no content can end the element.
    """
    text = json.dumps(datum, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    text = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    if len(text) <= PLAIN_LIMIT:
        return "json", text
    packed = gzip.compress(text.encode("ascii"), compresslevel=6, mtime=0)
    return "gzip", base64.b64encode(packed).decode("ascii")


def _static(name: str) -> str:
    return files("verify.report").joinpath("static", name).read_text(encoding="utf-8")


def _normal(text: str) -> str:
    """Text as a browser hashes it: the parser turns every line end into a line feed."""
    return text.replace("\r\n", "\n").replace("\r", "\n")
