"""Tells faults apart: the check, its status, the tensor and a coarse class of the pattern. Judges nothing itself."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from verify.verdict import Comparison, Finding, Status

_COMPARED = (Status.NUMERICAL, Status.NONFINITE, Status.SHAPE, Status.DTYPE)
_TENSOR = re.compile(r"(out|lse|dq|dk|dv|dbias|dsink)\b")
_CLASS_NAME = re.compile(r"[A-Za-z_.]+(?=:)")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class FaultKey:
    """What makes two failing cases the same fault."""

    check: str
    status: Status
    tensor: str = ""
    """First wrong tensor; empty where none was compared."""
    pattern: str = ""
    """Class of the pattern: all zeros, all NaN, constant factor, elements, or the name of the exception."""

    def same_kind(self, other: FaultKey) -> bool:
        """Equal but for the pattern, which changes when a case gets smaller."""
        mine = (self.check, self.status, self.tensor)
        return mine == (other.check, other.status, other.tensor)

    def __str__(self) -> str:
        return " ".join(part for part in (self.check, self.status, self.tensor, self.pattern) if part)


def fault_keys(findings: Iterable[Finding]) -> tuple[FaultKey, ...]:
    """Keys of all failures in the order of the findings; the first one names the fault of the case."""
    return tuple(key for finding in findings if finding.status.is_failure for key in _keys(finding))


def worst_ratio(findings: Iterable[Finding]) -> float:
    """Largest finite error/bound of any comparison; 0 when nothing was compared."""
    ratios = [c.max_bound_ratio for finding in findings for c in finding.comparisons if c.n_total]
    return max((ratio for ratio in ratios if ratio < float("inf")), default=0.0)


def _keys(finding: Finding) -> Iterator[FaultKey]:
    wrong = [c for c in finding.comparisons if not c.accepted]
    if wrong and finding.status in _COMPARED:
        for comparison in wrong:
            yield FaultKey(
                check=finding.check, status=finding.status, tensor=comparison.tensor, pattern=_pattern(comparison)
            )
        return
    reason = finding.reasons[0] if finding.reasons else ""
    if finding.status in (Status.LAUNCH_ERROR, Status.COMPILE_ERROR, Status.CRASH):
        name = _CLASS_NAME.match(reason)
        yield FaultKey(check=finding.check, status=finding.status, pattern=name.group() if name else "")
        return
    tensor = _TENSOR.match(reason)
    yield FaultKey(check=finding.check, status=finding.status, tensor=tensor.group(1) if tensor else "")


def _pattern(comparison: Comparison) -> str:
    for name in ("wrong shape", "all NaN", "all zeros"):
        if name in comparison.pattern:
            return name
    return "constant factor" if "x expected" in comparison.pattern else "elements"
