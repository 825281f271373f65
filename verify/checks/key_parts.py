"""A case cut in two along its keys: each part is a problem of its own whose rows see what they saw of these keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from verify.checks.case_run import CaseRun
from verify.checks.variation import logical_values, taken
from verify.dense import dense_sequences
from verify.problem import AttentionProblem

BY_KEY = ("mask", "bias", "dropout_keep")
"""Arrays whose last axis is the key."""


def unsplittable(run: CaseRun) -> str | None:
    """Why the case says nothing of two parts of its keys, or None."""
    p, able = run.case.problem, run.contract.capabilities
    if not {"out", "lse"} <= set(able.outputs):
        return "lse not declared"
    if p.is_ragged or p.seqlens_k is not None:
        return "only for sequences of one length"
    if p.bias == "alibi":
        return "ALiBi counts from the end of the keys"
    if p.dropout_p > 0 and able.dropout_mask == "own":
        return "the candidate draws its own dropout mask"
    return None if p.seqlen_k > 1 else "one key"


def key_parts(run: CaseRun) -> Iterator[tuple[str, Mapping[str, CaseRun]]]:
    """(label, the two runs by name) for a cut in the middle and before the last key."""
    problem = run.case.problem
    width = problem.block_size[1] if problem.pattern == "block_sparse" else 1
    cuts = {at // width * width for at in (problem.seqlen_k // 2, problem.seqlen_k - 1)}
    for cut in sorted(cuts - {0}):
        parts = {"first keys": part_of(run, 0, cut), "last keys": part_of(run, cut, problem.seqlen_k)}
        known = {name: part for name, part in parts.items() if part is not None}
        if len(known) == len(parts):
            yield f"keys cut at {cut}", known


def part_of(run: CaseRun, start: int, stop: int) -> CaseRun | None:
    """The case on keys start..stop-1 in a form that the candidate takes; None where there is none.

    The sink belongs to the first part alone: it is counted once.
    """
    problem, values = run.case.problem, logical_values(run)
    for name in ("k", "v"):
        values[name] = values[name][:, start:stop]
    for name in BY_KEY:
        if name in values:
            values[name] = values[name][..., start:stop]
    if "block_mask" in values:
        width = problem.block_size[1]
        values["block_mask"] = values["block_mask"][..., start // width : -(-stop // width)]
    fields: dict[str, Any] = {"seqlen_k": stop - start, "sink": problem.sink and start == 0}
    if start:
        values.pop("sink", None)
    if problem.layout in ("packed_qkv", "broadcast"):
        fields["layout"] = "bshd"
    placed = _shifted_diagonal(problem, start, stop)
    if placed is not None:
        part = taken(run, replace(problem, **fields, **placed), values)
        if part is not None:
            return part
    as_mask: dict[str, Any] = {"causal": False, "window": None, "pattern": "boolean"}
    values.pop("block_mask", None)
    return taken(run, replace(problem, **fields, **as_mask), values | {"mask": _visible(run)[..., start:stop]})


def _shifted_diagonal(p: AttentionProblem, start: int, stop: int) -> dict[str, Any] | None:
    """Mask fields under which the rows see the same of these keys; None where no window says so.

    The diagonal of the part lies `shift` keys to the left of where it was: it counts from the first key (top_left) or
    from the last one (bottom_right).
    """
    if not p.causal and p.window is None:
        return {}
    shift = start if p.alignment == "top_left" else stop - p.seqlen_k
    if shift == 0:
        return {}
    left, right = p.window or (None, None)
    if p.causal:
        right = 0
    moved = (None if left is None else left + shift, None if right is None else right - shift)
    if any(side is not None and side < 0 for side in moved):
        return None
    return {"causal": False, "window": moved}


def _visible(run: CaseRun) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """bool (batch, nheads, seqlen_q, seqlen_k): what the rows of the whole case see."""
    p = run.case.problem
    seen = np.ones((p.batch, p.nheads, p.seqlen_q, p.seqlen_k), dtype=bool)
    for part in dense_sequences(p, run.facts.inputs.arrays):
        if part.keep is not None:
            seen[part.index] = part.keep
    return seen
