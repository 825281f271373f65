"""The machine-readable summary of a run: totals, worst ratios and findings. Plain values, ready for json.dumps."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from verify.record import Record
from verify.terminal import repro_line
from verify.verdict import Status


def summarise(records: Sequence[Record], *, run_id: str, report: str) -> dict[str, Any]:
    """Totals by status, per candidate totals with the worst error/bound, every finding with its case id.

    Non-finite ratios are strings, as in the records.
    """
    candidates = dict.fromkeys(record.candidate for record in records)
    return {
        "run_id": run_id,
        "cases_x_candidates": len(records),
        "totals": _totals(records),
        "candidates": {name: _candidate([r for r in records if r.candidate == name]) for name in candidates},
        "findings": [
            {
                "case_id": record.case_id,
                "candidate": record.candidate,
                "check": finding.check,
                "status": str(finding.status),
                "reasons": list(finding.reasons),
                "likely_causes": list(record.verdict.likely_causes),
                "repro": repro_line(record),
            }
            for record in records
            for finding in record.verdict.findings
            if finding.status.is_failure
        ],
        "report": report,
    }


def _totals(records: Sequence[Record]) -> dict[str, int]:
    counts = Counter(str(record.verdict.status) for record in records)
    return {str(status): counts[str(status)] for status in Status if counts[str(status)]}


def _candidate(records: Sequence[Record]) -> dict[str, Any]:
    worst: dict[str, float] = {}
    for record in records:
        for finding in record.verdict.findings:
            for c in finding.comparisons:
                if c.n_total:
                    worst[c.tensor] = max(worst.get(c.tensor, 0.0), c.max_bound_ratio)
    return {
        "totals": _totals(records),
        "worst_error_over_bound": {
            tensor: ratio if math.isfinite(ratio) else str(ratio) for tensor, ratio in worst.items()
        },
        "backends": sorted({record.route.backend for record in records if record.route is not None}),
        "fallbacks": sum(bool(record.route and record.route.fallback_reason) for record in records),
    }
