"""JUnit XML: one test case for each case and candidate. Text from users cannot make it ill-formed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree

from verify.record import Record
from verify.report.facts import replay_command, worst_ratio
from verify.report.overview import deciding_finding, environments
from verify.report.text import show_number
from verify.verdict import Comparison, Finding, Status

_ILLEGAL = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 forbids even as references."""


def junit_xml(records: Sequence[Record], *, title: str, command: str) -> str:
    """JUnit document with a suite for each candidate.

    UNSUPPORTED and POWERLESS are skips (the format has nothing else for a case that gave no evidence), every other
    status but PASS is a failure whose type is the status.
    """
    root = ElementTree.Element("testsuites", name=xml_text(title))
    _count(root, records)
    for candidate in dict.fromkeys(record.candidate for record in records):
        own = [record for record in records if record.candidate == candidate]
        suite = ElementTree.SubElement(root, "testsuite", name=xml_text(candidate))
        suite.set("timestamp", xml_text(min(record.started_at for record in own)))
        _count(suite, own)
        _add_properties(suite, own, command)
        for record in own:
            _add_case(suite, record)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def xml_text(text: str) -> str:
    """Text with every character that XML 1.0 forbids written as a backslash escape."""
    return _ILLEGAL.sub(lambda found: found.group().encode("unicode_escape").decode("ascii"), text)


def _count(element: ElementTree.Element, records: Sequence[Record]) -> None:
    statuses = [record.verdict.status for record in records]
    skipped = sum(status in (Status.UNSUPPORTED, Status.POWERLESS) for status in statuses)
    element.set("tests", str(len(records)))
    element.set("failures", str(sum(status.is_failure for status in statuses)))
    element.set("errors", "0")
    element.set("skipped", str(skipped))
    element.set("time", f"{sum(map(_seconds, records)):.3f}")


def _add_properties(suite: ElementTree.Element, records: Sequence[Record], command: str) -> None:
    facts = {"command": command, "run_id": " ".join(dict.fromkeys(record.run_id for record in records))}
    facts["source_hash"] = " ".join(dict.fromkeys(record.source_hash for record in records))
    for place, environment in enumerate(environments(records)):
        prefix = f"environment{place or ''}"
        facts[f"{prefix}.device"] = environment.device
        facts[f"{prefix}.python"] = environment.python
        facts[f"{prefix}.platform"] = environment.platform
        facts |= {f"{prefix}.{name}": version for name, version in sorted(environment.packages.items())}
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in facts.items():
        ElementTree.SubElement(properties, "property", name=xml_text(name), value=xml_text(value))


def _add_case(suite: ElementTree.Element, record: Record) -> None:
    status = record.verdict.status
    case = ElementTree.SubElement(suite, "testcase", classname=xml_text(record.candidate))
    case.set("name", xml_text(record.case_id))
    case.set("time", f"{_seconds(record):.3f}")
    if status is Status.PASS:
        return
    outcome = ElementTree.SubElement(case, "failure" if status.is_failure else "skipped")
    outcome.set("type", status.value)
    outcome.set("message", xml_text(_message(record)))
    if status.is_failure:
        outcome.text = xml_text("\n".join(_details(record)))


def _seconds(record: Record) -> float:
    timing = record.timing
    return (timing.candidate_ms + timing.reference_ms + timing.bound_ms + timing.checks_ms) / 1000.0


def _message(record: Record) -> str:
    finding = deciding_finding(record)
    if finding is None:
        return record.verdict.status.value
    reason = next(iter(finding.reasons), "") or _ratio_text(finding)
    return f"{record.verdict.status.value} in {finding.check}" + (f": {reason}" if reason else "")


def _ratio_text(finding: Finding) -> str:
    return f"error/bound {show_number(worst_ratio(finding.comparisons))}" if finding.comparisons else ""


def _details(record: Record) -> list[str]:
    lines = [replay_command(record.case_id, record.candidate)]
    lines += [f"likely cause: {cause}" for cause in record.verdict.likely_causes]
    for finding in record.verdict.findings:
        if not finding.status.is_failure:
            continue
        lines.append(f"{finding.check}: {finding.status.value}")
        lines += [f"  {reason}" for reason in finding.reasons]
        for comparison in finding.comparisons:
            if not comparison.accepted:
                lines += _comparison_lines(comparison)
    return lines


def _comparison_lines(c: Comparison) -> list[str]:
    specials = f"NaN/+inf/-inf mismatches {c.nan_mismatch}/{c.posinf_mismatch}/{c.neginf_mismatch}"
    errors = f"max abs {show_number(c.max_abs)}, max rel {show_number(c.max_rel)}, cosine {c.cosine:.9g}"
    lines = [
        f"  {c.tensor}: error/bound {show_number(c.max_bound_ratio)}, {c.n_exceeding} of {c.n_total} elements exceed",
        f"    {errors}, {specials}" + (f"; {c.pattern}" if c.pattern else ""),
    ]
    for element in c.worst:
        place = ", ".join(map(str, element.index))
        values = f"got {element.got:.9g}, expected {element.expected:.9g}, bound {show_number(element.bound)}"
        lines.append(f"    [{place}] tile {element.tile}: {values}, error/bound {show_number(element.ratio)}")
    return lines
