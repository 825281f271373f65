"""Deviations of public libraries that were traced by hand: a finding that matches one carries its reason.

They stay findings. An entry whose example no longer fails is stale, and tests/verify/test_known.py says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from verify.problem import AttentionProblem
from verify.verdict import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownDeviation:
    """One traced deviation of one candidate."""

    candidate: str
    check: str
    example: str
    """Case id that shows it."""
    applies: Callable[[AttentionProblem], bool]
    """Problems that it reaches."""
    reason: str
    """What the library does, from which version on seen, and where it is written up."""


KNOWN = (
    KnownDeviation(
        candidate="torch_flash",
        check="special_values",
        example="attn1:b=2,sq=1,sk=1,h=1,d=64,dtype=fp16,recipe=normal,seed=31",
        applies=lambda problem: problem.seqlen_k < 16,
        reason=(
            "known: PyTorch 2.13 CPU flash returns 0 for a row whose scores are all NaN when there are fewer keys "
            "than vector lanes (docs/findings.md)"
        ),
    ),
)


def known_reason(candidate: str, problem: AttentionProblem, finding: Finding) -> str | None:
    """The traced reason of a failing finding, or None when it is new."""
    if not finding.status.is_failure:
        return None
    for entry in KNOWN:
        if entry.candidate == candidate and entry.check == finding.check and entry.applies(problem):
            return entry.reason
    return None
