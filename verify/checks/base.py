"""What a check is: a name, a cost, the statuses that it can raise, and a function from a case run to a finding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from verify.checks.case_run import CaseRun
from verify.verdict import Comparison, Finding, Status
from verify.worker import Outcome

SHOWN_LINES = 12
"""Last lines of a traceback or of printed output that a finding keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check, selectable by name."""

    name: str
    summary: str
    """One line for `list`."""
    calls: int
    """Calls of the candidate beyond those that the other checks share."""
    raises: tuple[Status, ...]
    """Statuses beside PASS and UNSUPPORTED that it can give."""
    function: Callable[[CaseRun], Finding]

    def run(self, case_run: CaseRun) -> Finding:
        """The finding of this check on one case and candidate."""
        return self.function(case_run)


def status_of(comparisons: tuple[Comparison, ...]) -> Status:
    """Worst status of some comparisons; nothing compared is a failure of shape."""
    if not comparisons or not all(c.shape_ok for c in comparisons):
        return Status.SHAPE
    if not all(c.dtype_ok for c in comparisons):
        return Status.DTYPE
    if any(c.nan_mismatch + c.posinf_mismatch + c.neginf_mismatch for c in comparisons):
        return Status.NONFINITE
    return Status.PASS if all(c.accepted for c in comparisons) else Status.NUMERICAL


def fault_finding(check: str, outcome: Outcome) -> Finding:
    """Finding of a call that did not run: its status, its message, the candidate's own traceback and output."""
    tail = [line for text in (outcome.traceback, outcome.output) for line in text.strip().splitlines()[-SHOWN_LINES:]]
    reasons = (outcome.message, *outcome.notes, *(line for line in tail if line.strip() != outcome.message))
    return Finding(check=check, status=outcome.status, reasons=reasons)


def reason_of(comparison: Comparison) -> str:
    """One line that says why a comparison is not accepted."""
    c = comparison
    if not c.shape_ok:
        return f"{c.tensor}: wrong shape"
    if not c.dtype_ok:
        return f"{c.tensor}: wrong dtype"
    specials = [
        f"{count} {name}"
        for name, count in (("NaN", c.nan_mismatch), ("+inf", c.posinf_mismatch), ("-inf", c.neginf_mismatch))
        if count
    ]
    if specials:
        return f"{c.tensor}: {' and '.join(specials)} where the reference differs: {c.pattern}"
    return f"{c.tensor}: error {c.max_bound_ratio:.3g} x the bound: {c.pattern}"
