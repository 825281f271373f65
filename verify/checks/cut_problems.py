"""The case packed, cut or padded: problems of another shape whose answers are parts of the case's own.

Bit for bit where the kernel's tiles fall alike; where they do not, the call is judged by its own bounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from verify.checks.case_run import CaseRun
from verify.checks.relation import Relation
from verify.checks.variation import Array, Values, logical_values, takes, vary
from verify.problem import AttentionProblem

BY_ROW = ("q", "dout", "out", "dq")
BY_KEY = ("k", "v", "dk", "dv")
ROW_VALUES = ("dlse", "lse")
PLANES = ("mask", "bias", "dropout_keep")
PADDING = 8
"""Zero columns more: a multiple of what vector loads and tensor cores ask for."""


def cut_problems(run: CaseRun, first: Values, backward: bool) -> Iterator[Relation]:
    """The relations that the case and the candidate admit."""
    p = run.case.problem
    if p.is_ragged or p.seqlens_k is not None:
        return
    for build in (packed, prefix, last_rows, wider_heads, own_key_only):
        relation = build(run, first, backward)
        if relation is not None:
            yield relation


def _plain(p: AttentionProblem) -> str:
    """Layout of a problem whose shapes have changed."""
    return p.layout if p.layout in ("bshd", "sliced", "offset") else "bshd"


def packed(run: CaseRun, first: Values, backward: bool) -> Relation | None:
    """The batch as one ragged call of equal lengths."""
    p = run.case.problem
    ends = {name: tuple(range(0, p.batch * size + 1, size)) for name, size in _sizes(p).items() if size}
    if len(ends) < 2:
        return None
    problem = replace(p, cu_seqlens_q=ends["cu_seqlens_q"], cu_seqlens_k=ends["cu_seqlens_k"], layout=_plain(p))
    if not takes(run, problem):
        return None

    def joined(name: str, array: Array) -> Array:
        if name in BY_ROW + BY_KEY:
            return array.reshape(-1, *array.shape[2:])
        return np.moveaxis(array, 0, 1).reshape(p.nheads, -1) if name in ROW_VALUES else array

    values = {name: joined(name, array) for name, array in logical_values(run).items()}
    values |= {name: np.array(cu, dtype=np.int32) for name, cu in ends.items()}
    expected = {name: joined(name, array) for name, array in first.items()}
    return Relation(label="packed", varied=vary(run, values, problem), backward=backward, expected=expected)


def _sizes(p: AttentionProblem) -> dict[str, int]:
    return {"cu_seqlens_q": p.seqlen_q, "cu_seqlens_k": p.seqlen_k}


def prefix(run: CaseRun, first: Values, backward: bool) -> Relation | None:
    """Causal on a square: the first rows with the first keys alone."""
    p = run.case.problem
    unit = max(p.block_size) if p.pattern == "block_sparse" else 1
    count = p.seqlen_q // 2 // unit * unit
    if not p.causal or p.seqlen_q != p.seqlen_k or not count:
        return None
    problem = replace(p, seqlen_q=count, seqlen_k=count)
    if not takes(run, problem):
        return None
    rows = slice(0, count)
    return _part(run, first, backward, label="prefix", problem=problem, rows=rows, keys=rows)


def last_rows(run: CaseRun, first: Values, backward: bool) -> Relation | None:
    """The last rows alone; the diagonal counts from the last key, so it stays where it is."""
    p = run.case.problem
    unit = p.block_size[0] if p.pattern == "block_sparse" else 1
    start = p.seqlen_q // 3 // unit * unit
    placed = p.causal or p.window is not None or p.bias == "alibi"
    if not start or (placed and p.alignment != "bottom_right"):
        return None
    problem = replace(p, seqlen_q=p.seqlen_q - start, layout=_plain(p))
    if not takes(run, problem):
        return None
    rows, keys = slice(start, p.seqlen_q), slice(0, p.seqlen_k)
    return _part(run, first, backward, label="last rows", problem=problem, rows=rows, keys=keys)


def _part(
    run: CaseRun,
    first: Values,
    backward: bool,
    *,
    label: str,
    problem: AttentionProblem,
    rows: slice,
    keys: slice,
) -> Relation:
    """Some rows with some keys. dk, dv, dbias and dsink are sums or planes that other rows have a share in."""
    cut = partial(_cut, run.case.problem, rows, keys)
    values = {name: cut(name, array) for name, array in logical_values(run).items()}
    expected = {name: cut(name, array) for name, array in first.items() if name in ("out", "lse", "dq")}
    return Relation(label=label, varied=vary(run, values, problem), backward=backward, expected=expected)


def _cut(p: AttentionProblem, rows: slice, keys: slice, name: str, array: Array) -> Array:
    if name in BY_ROW:
        return array[:, rows]
    if name in BY_KEY:
        return array[:, keys]
    if name in ROW_VALUES:
        return array[..., rows]
    if name in PLANES:
        return array[..., rows, keys]
    if name == "block_mask":
        height, width = p.block_size
        return array[..., rows.start // height : -(-rows.stop // height), keys.start // width : -(-keys.stop // width)]
    return array


def wider_heads(run: CaseRun, first: Values, backward: bool) -> Relation | None:
    """Zero columns behind q, k, v and dout: they add nothing to any sum, and what belongs to them is 0."""
    p = run.case.problem
    problem = replace(p, head_dim=p.head_dim + PADDING, head_dim_v=p.head_dim_v + PADDING)
    if not takes(run, problem):
        return None

    def padded(name: str, array: Array) -> Array:
        if name not in BY_ROW + BY_KEY:
            return array
        return np.concatenate([array, np.zeros((*array.shape[:-1], PADDING), dtype=array.dtype)], axis=-1)

    values = {name: padded(name, array) for name, array in logical_values(run).items()}
    expected = {name: padded(name, array) for name, array in first.items()}
    label = f"{PADDING} zero columns"
    return Relation(label=label, varied=vary(run, values, problem), backward=backward, expected=expected)


def own_key_only(run: CaseRun, first: Values, backward: bool) -> Relation | None:
    """A window of one key on a square: out is v, whatever q and k are."""
    p = run.case.problem
    bare = p.pattern == "none" and p.bias == "none" and not p.sink and p.dropout_p == 0
    if not bare or p.seqlen_q != p.seqlen_k:
        return None
    fields: dict[str, Any] = {"window": (0, 0), "causal": False}
    problem = replace(p, **fields)
    if not takes(run, problem):
        return None
    values = logical_values(run)
    out = np.repeat(values["v"], p.group, axis=-2).astype(first["out"].dtype)
    varied = vary(run, values, problem)
    return Relation(label="window of one key", varied=varied, backward=backward, expected={"out": out})
