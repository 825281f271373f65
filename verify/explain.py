"""The symptom table as code: which faults of attention kernels leave the pattern that the findings show."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from verify.problem import AttentionProblem
from verify.verdict import Comparison, Finding, Status

MAX_CAUSES = 3
_FACTOR = re.compile(r"got = (\S+) x expected")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What the symptom rules look at."""

    problem: AttentionProblem
    statuses: Mapping[str, Status]
    """Check -> status."""
    by_tensor: Mapping[str, Comparison]

    def failed(self, tensor: str) -> bool:
        """The tensor was compared and not accepted."""
        return tensor in self.by_tensor and not self.by_tensor[tensor].accepted

    def right(self, tensor: str) -> bool:
        """The tensor was compared and accepted."""
        return tensor in self.by_tensor and self.by_tensor[tensor].accepted

    def pattern(self, tensor: str) -> str:
        return self.by_tensor[tensor].pattern if tensor in self.by_tensor else ""

    def factor(self, tensor: str) -> float | None:
        """Constant factor of got on expected, where there is one."""
        match = _FACTOR.search(self.pattern(tensor))
        return float(match.group(1)) if match else None

    def factor_is(self, tensor: str, value: float) -> bool:
        factor = self.factor(tensor)
        return factor is not None and math.isclose(factor, value, rel_tol=0.01)


Rule = Callable[[Evidence], bool]


def _masked(e: Evidence) -> bool:
    p = e.problem
    return p.causal or p.window is not None or p.pattern != "none" or p.seqlens_k is not None


def _any_nan(e: Evidence) -> bool:
    return any(comparison.nan_mismatch for comparison in e.by_tensor.values())


def _only(*names: str) -> Rule:
    """Exactly these of dq, dk, dv are wrong, and out is right."""
    return lambda e: e.right("out") and {name for name in ("dq", "dk", "dv") if e.failed(name)} == set(names)


def _gradient_factor(power: int) -> Rule:
    """dq or dk is a constant multiple: softmax_scale to that power."""
    return lambda e: any(e.factor_is(name, e.problem.softmax_scale**power) for name in ("dq", "dk"))


def _status(check: str, status: Status) -> Rule:
    return lambda e: e.statuses.get(check) is status


def _tail(e: Evidence) -> bool:
    named = any("last tile" in comparison.pattern for comparison in e.by_tensor.values())
    return named or (e.problem.seqlen_k % 16 != 0 and e.failed("out"))


def _slightly_off(e: Evidence) -> bool:
    near = any(1 < comparison.max_bound_ratio < 10 for comparison in e.by_tensor.values())
    return near or e.statuses.get("aggregate") is Status.NUMERICAL


SYMPTOMS: tuple[tuple[str, Rule], ...] = (
    ("inputs are overwritten by the kernel", lambda e: Status.MUTATED_INPUT in e.statuses.values()),
    ("output never written: launch skipped, empty grid or early return", lambda e: "all zeros" in e.pattern("out")),
    (
        "NaN from a fully masked row: exp(-inf - -inf), or 0/0 in the final division",
        lambda e: _masked(e) and _any_nan(e),
    ),
    ("NaN from overflow: maximum not subtracted before exp, or scores beyond the format", _any_nan),
    ("lse in base 2: multiply it by ln 2", lambda e: e.factor_is("lse", math.log2(math.e))),
    ("lse without the row maximum, or of another convention", lambda e: e.failed("lse") and e.right("out")),
    (
        "state kept between calls: workspace, accumulator or cache not reset",
        _status("determinism", Status.NONDETERMINISTIC),
    ),
    (
        "query head reads the wrong key/value head (h // group, not h % nheads_kv)",
        lambda e: e.problem.group > 1 and "head" in e.pattern("out"),
    ),
    ("softmax_scale missing in dq or dk", _gradient_factor(-1)),
    ("softmax_scale applied twice in dq or dk", _gradient_factor(1)),
    (
        "dk and dv not summed over the query heads of a group",
        lambda e: e.problem.group > 1 and _only("dk", "dv")(e),
    ),
    ("delta = rowsum(dO*O) dropped, or of the wrong row", _only("dq", "dk")),
    ("last query tile left out of dk and dv", _only("dk", "dv")),
    ("P of the backward not normalised, or rounded too far, before dV", _only("dv")),
    ("last key tile left out of dq", _only("dq")),
    ("tail tile: rows or keys beyond the length not masked, or the last ones skipped", _tail),
    (
        "mask off by one, or aligned to the other corner (bottom-right against top-left)",
        lambda e: _masked(e) and e.failed("out"),
    ),
    ("softmax_scale wrong, missing or applied twice", lambda e: e.failed("out") and e.failed("lse")),
    (
        "rescale factor exp(m_old - m_new) missing or applied to the wrong accumulator",
        lambda e: e.failed("out") and e.problem.seqlen_k > 16,
    ),
    ("precision lost below the contract: truncation, a low-precision accumulator or a rough exp", _slightly_off),
)
"""(cause, rule), most specific first; the first MAX_CAUSES that fit are named."""


def likely_causes(problem: AttentionProblem, findings: tuple[Finding, ...]) -> tuple[str, ...]:
    """Causes that fit the findings of one case, most likely first; empty when nothing failed."""
    if not any(finding.status.is_failure for finding in findings):
        return ()
    evidence = Evidence(
        problem=problem,
        statuses={finding.check: finding.status for finding in findings},
        by_tensor={c.tensor: c for finding in findings for c in finding.comparisons},
    )
    fitting = [cause for cause, shows in SYMPTOMS if shows(evidence)]
    return tuple(fitting[:MAX_CAUSES])
