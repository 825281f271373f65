"""Records in; one HTML page, one Markdown summary and one JUnit file out. Judges nothing and runs nothing."""

from __future__ import annotations

from verify.report.data import report_data
from verify.report.facts import replay_command
from verify.report.html import ReportPaths, html_page, write_report
from verify.report.junit import junit_xml
from verify.report.summary import summary_markdown

__all__ = [
    "ReportPaths",
    "html_page",
    "junit_xml",
    "replay_command",
    "report_data",
    "summary_markdown",
    "write_report",
]
