"""What a campaign is asked to do. Data only."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from verify.case import Case
from verify.contract import Capabilities
from verify.fuzz.minimise import Budget


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One campaign on one candidate."""

    candidate: str
    out: Path
    """Folder of the log; a campaign on the same candidate there is continued."""
    seed: int = 0
    jobs: int = 1
    """Processes that draw and judge."""
    seconds: float | None = 60.0
    """Wall-clock budget; None = no limit. A fault that was found is made small beyond it."""
    examples: int | None = None
    """Cases over all lanes; None = no limit."""
    checks: tuple[str, ...] = ()
    """Names of checks; empty = the cheap ones on every case, the others now and then."""
    keep_going: bool = False
    """Go on after the first fault, until the budget ends."""
    in_process: bool = False
    timeout_s: float = 20.0
    python: str | None = None
    database: str = ""
    """Folder or Redis address of Hypothesis's examples; empty = the cache folder."""
    regressions: tuple[tuple[Case, str], ...] = field(default=(), repr=False)
    """Cases that are tried first, each with the name of the check that failed."""
    max_seqlen: int = 160
    max_head_dim: int | None = None
    """Largest head dim that is asked; None = what the candidate declares."""
    max_score_elements: int = 8_000
    """Most batch x nheads x seqlen_q x seqlen_k of a drawn case: small cases, many of them."""
    minimise_budget: Budget | None = None
    """None = by the status of the fault."""

    @property
    def narrowing(self) -> dict[str, Any]:
        """Arguments of verify.strategies.problems."""
        return {"max_seqlen": self.max_seqlen, "max_score_elements": self.max_score_elements, "max_batch": 3}

    def narrowed(self, declared: Capabilities) -> Capabilities:
        """What the campaign asks of what a candidate declares."""
        if self.max_head_dim is None:
            return declared
        return replace(declared, max_head_dim=min(self.max_head_dim, declared.max_head_dim))

    def examples_of(self, lane: int) -> int | None:
        """Cases of one lane."""
        if self.examples is None:
            return None
        return self.examples // self.jobs + (lane < self.examples % self.jobs)
