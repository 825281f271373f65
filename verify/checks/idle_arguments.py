"""The case with one more argument that changes nothing: a mask that hides nothing, a bias of 0, a sink without weight.

Bit for bit where the kernel takes the same path; another path is judged by its own bounds (`relation.hold`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from verify.checks.case_run import CaseRun
from verify.checks.relation import Relation
from verify.checks.variation import Array, Values, logical_values, takes, vary
from verify.dtypes import float_format
from verify.problem import AttentionProblem

SINK_BELOW = 1000.0
"""Distance of a sink's logit from the smallest lse: e^-1000 is 0 in fp64 too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """One argument, the fields that announce it and the arrays that carry it."""

    label: str
    fields: dict[str, Any]
    arrays: dict[str, Array]


def idle_arguments(run: CaseRun, first: Values, backward: bool) -> Iterator[Relation]:
    """The relations that the case and the candidate admit."""
    for idle in (*_idle(run.case.problem), *_weightless_sink(run)):
        problem = replace(run.case.problem, **idle.fields)
        if takes(run, problem):
            varied = vary(run, logical_values(run) | idle.arrays, problem)
            yield Relation(label=idle.label, varied=varied, backward=backward, expected=first)


def _idle(p: AttentionProblem) -> Iterator[Idle]:
    scores = (p.batch, p.nheads, p.seqlen_q, p.seqlen_k)
    if p.window is None:
        everything = p.seqlen_q + p.seqlen_k
        yield Idle(label="window over everything", fields={"window": (everything, everything)}, arrays={})
    if p.pattern == "none":
        shown = {"mask": np.ones(scores, dtype=bool)}
        yield Idle(label="mask that hides nothing", fields={"pattern": "boolean"}, arrays=shown)
        blocks = (*scores[:2], -(-p.seqlen_q // p.block_size[0]), -(-p.seqlen_k // p.block_size[1]))
        all_blocks = {"block_mask": np.ones(blocks, dtype=bool)}
        yield Idle(label="blocks that hide nothing", fields={"pattern": "block_sparse"}, arrays=all_blocks)
    if p.bias == "none":
        zero = {"bias": np.zeros(scores, dtype=float_format(p.dtype).numpy_dtype)}
        fields: dict[str, Any] = {"bias": "additive", "bias_broadcast": (False, False)}
        yield Idle(label="bias of 0", fields=fields, arrays=zero)
        slopes = {"alibi_slopes": np.zeros(p.nheads, dtype=np.float32)}
        yield Idle(label="slopes of 0", fields={"bias": "alibi"}, arrays=slopes)
    if not p.is_ragged and p.seqlens_k is None:
        full = (p.seqlen_k,) * p.batch
        lengths = {"seqlens_k": np.array(full, dtype=np.int32)}
        yield Idle(label="lengths that leave no padding", fields={"seqlens_k": full}, arrays=lengths)


def _weightless_sink(run: CaseRun) -> Iterator[Idle]:
    """Rows that see no key would take all from the sink, so there must be none."""
    lse = run.facts.reference(backward=False, with_dlse=False)["lse"]
    if run.case.problem.sink or not np.isfinite(lse).all():
        return
    logit = np.float32(lse.min() - SINK_BELOW)
    logits = {"sink": np.full(run.case.problem.nheads, logit, dtype=np.float32)}
    yield Idle(label="sink without weight", fields={"sink": True}, arrays=logits)
