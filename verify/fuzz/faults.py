"""Tells faults apart: the check, its status, the tensor and a coarse class of the pattern. Judges nothing itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

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
    known: bool = False
    """A traced deviation of the library (verify.known): a new fault of the same look is another one."""

    def same_kind(self, other: FaultKey) -> bool:
        """Equal but for the pattern, which changes when a case gets smaller."""
        mine = (self.check, self.status, self.tensor, self.known)
        return mine == (other.check, other.status, other.tensor, other.known)

    def __str__(self) -> str:
        parts = (self.check, self.status, self.tensor, self.pattern, "(known)" if self.known else "")
        return " ".join(part for part in parts if part)


def fault_keys(
    findings: Iterable[Finding], is_known: Callable[[Finding], bool] = lambda finding: False
) -> tuple[FaultKey, ...]:
    """Keys of all failures in the order of the findings, known ones last; the first one names the fault of the case."""
    failing = [finding for finding in findings if finding.status.is_failure]
    keys = (replace(key, known=is_known(finding)) for finding in failing for key in _keys(finding))
    return tuple(sorted(keys, key=lambda key: key.known))


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
