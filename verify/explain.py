"""The symptom table as code: which faults of attention kernels leave the pattern that the findings show.

Looks at findings and at the features of the case. Knows no kernel and judges nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from verify.case import features
from verify.problem import AttentionProblem
from verify.verdict import Comparison, Finding, Status

MAX_CAUSES = 3
_FRESH_MEMORY = 1e37
_FACTOR = re.compile(r"got = (\S+) x expected")

CAUSES: Mapping[str, str] = {
    "inputs": "inputs are overwritten by the kernel",
    "stream": "work on another stream than the current one, or in a thread, that the call does not wait for",
    "race": "missing barrier, or two threads update one value",
    "memory": "access outside of a tensor, or memory read before it is written",
    "unwritten": "output not written: launch skipped, grid too small, early return, or padding left as it was",
    "split": "parts of the keys merged without their lse, or a part lost or counted twice",
    "state": "state kept between calls: workspace, options or cache not reset, or an order that changes",
    "masked_row": "row (or first tile) with nothing to attend to: exp(-inf - -inf), 0/0, or a finite mask value",
    "overflow": "NaN or infinity from overflow: maximum not subtracted, or scores beyond the format",
    "poison": "special values: hidden or padded elements multiplied by zero weights, or a NaN swallowed",
    "lse": "lse in another base or convention, or without the row maximum",
    "mask": "mask ignored, off by one, of another head, or aligned to the other corner",
    "varlen": "lengths or offsets of the sequences: start of another one, allotted for used length",
    "score": "softcap, bias, ALiBi or sink wrong, or left out in one direction",
    "head": "query head reads the wrong key/value head (h // group, not h % nheads_kv)",
    "group": "dk and dv not summed over all query heads of a group",
    "dropout": "dropout mask or its factor differs between forward, dP and dV",
    "layout": "strides: another tensor's, swapped, assumed dense, or an offset that wraps",
    "head_dim": "head dim of V taken for that of Q and K, or dims beyond a multiple left out",
    "tail": "range of keys: tail tile not masked, first or last tile left out, visited twice or loaded again",
    "scale": "softmax_scale wrong, missing or applied twice",
    "rescale": "running maximum or sum: exp(m_old - m_new) missing or on the wrong accumulator, partial reduction",
    "delta": "delta = rowsum(dO*O) dropped, stale, or of another row, head or sequence",
    "dlse": "gradient of lse ignored, or of the wrong sign",
    "recompute": "P recomputed with a wrong lse in the backward",
    "grad_scale": "softmax_scale missing, or applied twice, in dq or dk",
    "grad_factor": "constant factor in one gradient: ln 2, log2(e), or the dropout factor",
    "gradient_tiles": "tiles of the backward loop left out, stale or loaded from the wrong place",
    "bwd_mismatch": "backward honours other masks or options than the forward",
    "dv_only": "dv alone: P unnormalised, rounded, or another matrix in its place",
    "dk_only": "dk alone: another matrix than dS or Q in its product",
    "dq_only": "dq alone: another matrix than dS or K in its product",
    "bias_gradient": "dbias: sum over a broadcast axis wrong, or scaled",
    "sink_gradient": "dsink: sign, lse or the sum over rows and sequences",
    "precision": "precision below the contract: truncation, a narrow accumulator or operand, a rough exponential",
}
"""Key -> sentence."""

SUSPECTS: Mapping[str, tuple[str, ...]] = {
    "varlen": ("ragged", "lengths", "paged"),
    "score": ("softcap", "bias", "alibi", "sink"),
    "dropout": ("dropout",),
    "head": ("gqa",),
    "layout": ("bhsd", "packed_qkv", "sliced", "broadcast", "offset", "strided"),
    "head_dim": ("dv",),
    "mask": ("causal", "causal_topleft", "window", "boolean", "block_sparse"),
}
"""Cause -> features that bring it under suspicion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What the symptom rules look at."""

    problem: AttentionProblem
    statuses: Mapping[str, Status]
    """Check -> status."""
    by_tensor: Mapping[str, Comparison]
    passed: frozenset[str] = frozenset()
    """Features of cases that the same candidate passed: no longer under suspicion."""

    def failed(self, *tensors: str) -> bool:
        """All of the tensors were compared and not accepted."""
        return all(t in self.by_tensor and not self.by_tensor[t].accepted for t in tensors)

    def right(self, *tensors: str) -> bool:
        """None of the tensors was compared and not accepted."""
        return all(t not in self.by_tensor or self.by_tensor[t].accepted for t in tensors)

    @property
    def wrong_gradients(self) -> frozenset[str]:
        """Names of the gradients that are not accepted."""
        return frozenset(name for name in self.by_tensor if name.startswith("d") and self.failed(name))

    @property
    def forward_right(self) -> bool:
        return self.right("out", "lse")

    def pattern(self, tensor: str) -> str:
        return self.by_tensor[tensor].pattern if tensor in self.by_tensor else ""

    def factor(self, tensor: str) -> float | None:
        """Constant factor of got on expected, where there is one."""
        match = _FACTOR.search(self.pattern(tensor))
        return float(match.group(1)) if match else None

    def factor_is(self, tensor: str, value: float) -> bool:
        factor = self.factor(tensor)
        return factor is not None and math.isclose(factor, value, rel_tol=0.01)

    def suspected(self, cause: str) -> bool:
        """The case has a feature of that cause which no passed case had."""
        return any(name in SUSPECTS[cause] for name in features(self.problem) if name not in self.passed)

    def possible(self, cause: str) -> bool:
        """The case has a feature of that cause."""
        return any(name in SUSPECTS[cause] for name in features(self.problem))

    def fails(self, *checks: str) -> bool:
        """One of the checks ended in a failure."""
        return any(check in self.statuses and self.statuses[check].is_failure for check in checks)

    def has_status(self, *statuses: Status) -> bool:
        return any(status in statuses for status in self.statuses.values())

    @property
    def wrong(self) -> tuple[Comparison, ...]:
        return tuple(c for c in self.by_tensor.values() if not c.accepted)

    @property
    def special_values_differ(self) -> bool:
        return any(c.nan_mismatch or c.posinf_mismatch or c.neginf_mismatch for c in self.wrong)

    @property
    def slight(self) -> bool:
        """Every wrong output is nearly right as a whole, and no constant multiple."""
        return bool(self.wrong) and not self.special_values_differ and all(c.rel_l2 < 0.01 for c in self.wrong)


Rule = Callable[[Evidence], bool]


def _any_nan(e: Evidence) -> bool:
    return any(c.nan_mismatch for c in e.wrong)


def _some_row_is_empty(e: Evidence) -> bool:
    p = e.problem
    short = p.causal and p.seqlen_q > p.seqlen_k
    hidden = p.window is not None or p.pattern != "none" or p.bias_hidden > 0
    return short or hidden or p.seqlens_k is not None or p.is_ragged


def _only(*names: str) -> Rule:
    """Exactly these gradients are wrong, and the forward is right."""
    return lambda e: e.forward_right and e.wrong_gradients == set(names)


def _gradient_factor(e: Evidence) -> bool:
    scale = e.problem.softmax_scale
    return any(e.factor_is(name, scale**power) for name in ("dq", "dk") for power in (-1, 1))


def _other_factor(e: Evidence) -> bool:
    return e.forward_right and any(e.factor(name) is not None for name in e.wrong_gradients)


def _unwritten(e: Evidence) -> bool:
    """All zeros, or numbers as large as those that fresh memory is filled with (0x7f7f7f7f is 3.39e38)."""
    zeros = any("all zeros" in c.pattern for c in e.wrong)
    return zeros or any(_FRESH_MEMORY < c.max_abs < math.inf for c in e.wrong)


def _some_columns(e: Evidence) -> bool:
    return any("column" in c.pattern for c in e.wrong)


def _suspected(cause: str) -> Rule:
    return lambda e: not e.forward_right and e.suspected(cause)


def _possible(cause: str) -> Rule:
    """The feature passed elsewhere, but there are many ways to combine lengths and masks."""
    return lambda e: not e.forward_right and e.possible(cause)


def _suspected_beside_nan(cause: str) -> Rule:
    return lambda e: e.special_values_differ and e.suspected(cause)


def _suspected_in_gradients(cause: str) -> Rule:
    return lambda e: e.forward_right and bool(e.wrong_gradients) and e.suspected(cause)


SYMPTOMS: tuple[tuple[str, Rule], ...] = (
    ("inputs", lambda e: e.has_status(Status.MUTATED_INPUT)),
    ("stream", lambda e: e.fails("streams", "deferred") and e.has_status(Status.RACE)),
    ("race", lambda e: e.has_status(Status.RACE)),
    ("unwritten", _unwritten),
    ("unwritten", lambda e: e.fails("prefill") and e.has_status(Status.UNWRITTEN)),
    ("memory", lambda e: e.has_status(Status.OUT_OF_BOUNDS, Status.CRASH, Status.HANG, Status.UNWRITTEN)),
    ("state", lambda e: e.has_status(Status.NONDETERMINISTIC)),
    ("split", lambda e: e.fails("split_count", "split_merge") and not e.fails("forward", "lse")),
    ("sink_gradient", _only("dsink")),
    ("bias_gradient", _only("dbias")),
    ("lse", lambda e: e.failed("lse") and e.right("out") and not e.suspected("score")),
    *((cause, _suspected_beside_nan(cause)) for cause in ("varlen", "layout")),
    ("masked_row", lambda e: e.special_values_differ and _some_row_is_empty(e)),
    ("poison", lambda e: e.fails("special_values", "poison") and not e.wrong),
    ("state", lambda e: e.fails("poison", "sequence") and not e.wrong),
    ("race", lambda e: _any_nan(e) and e.forward_right),
    ("masked_row", _any_nan),
    ("race", _any_nan),
    ("overflow", _any_nan),
    ("precision", lambda e: e.slight),
    ("scale", lambda e: e.slight and e.failed("out", "lse")),
    ("grad_scale", lambda e: e.forward_right and _gradient_factor(e)),
    ("grad_factor", _other_factor),
    ("group", lambda e: e.problem.group > 1 and _only("dk", "dv")(e)),
    ("dropout", _suspected_in_gradients("dropout")),
    ("score", _suspected_in_gradients("score")),
    ("delta", _only("dq", "dk")),
    ("dv_only", _only("dv")),
    ("dk_only", _only("dk")),
    ("head", lambda e: e.problem.group > 1 and _only("dq")(e)),
    ("dq_only", _only("dq")),
    ("bwd_mismatch", _suspected_in_gradients("mask")),
    ("bwd_mismatch", _suspected_in_gradients("score")),
    ("layout", _suspected_in_gradients("layout")),
    ("head_dim", _suspected_in_gradients("head_dim")),
    ("gradient_tiles", lambda e: e.forward_right and bool(e.wrong_gradients)),
    ("recompute", lambda e: e.forward_right and e.wrong_gradients >= {"dq", "dk", "dv"}),
    ("bwd_mismatch", lambda e: e.forward_right and e.wrong_gradients >= {"dq", "dk", "dv"}),
    ("dlse", _only("dq", "dk")),
    ("head_dim", _some_columns),
    *((cause, _suspected(cause)) for cause in ("varlen", "dropout", "head", "score", "layout", "head_dim", "mask")),
    ("dropout", lambda e: e.problem.dropout_p > 0 and e.failed("out") and e.right("lse")),
    ("head", lambda e: "head" in e.pattern("out") and "head" in e.pattern("lse")),
    *((cause, _possible(cause)) for cause in ("mask", "varlen")),
    ("rescale", lambda e: e.failed("out") and e.right("lse")),
    ("tail", lambda e: e.failed("out")),
    ("rescale", lambda e: e.failed("out")),
    ("scale", lambda e: e.failed("out", "lse")),
    ("race", lambda e: bool(e.wrong)),
)
"""(cause, rule), most specific first; the first MAX_CAUSES that fit are named."""


def likely_keys(
    problem: AttentionProblem, findings: tuple[Finding, ...], *, passed: frozenset[str] = frozenset()
) -> tuple[str, ...]:
    """Keys of the causes that fit the findings of one case, most likely first; empty when nothing failed.

    `passed` holds the features of cases that the same candidate has passed, as far as known.
    """
    if not any(finding.status.is_failure for finding in findings):
        return ()
    evidence = Evidence(
        problem=problem,
        statuses={finding.check: finding.status for finding in findings},
        by_tensor={c.tensor: c for finding in findings for c in finding.comparisons},
        passed=passed,
    )
    fitting = dict.fromkeys(cause for cause, shows in SYMPTOMS if shows(evidence))
    return tuple(fitting)[:MAX_CAUSES]


def likely_causes(
    problem: AttentionProblem, findings: tuple[Finding, ...], *, passed: frozenset[str] = frozenset()
) -> tuple[str, ...]:
    """The sentences of `likely_keys`."""
    return tuple(CAUSES[key] for key in likely_keys(problem, findings, passed=passed))
