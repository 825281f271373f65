"""Invariance check: a sequence alone, heads in another order, pages and strides elsewhere, other hidden keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from verify.checks.alone import alone
from verify.checks.base import Check
from verify.checks.case_run import CaseRun
from verify.checks.comparison import FAULTS
from verify.checks.neighbours import judge_neighbours
from verify.checks.places import key_index
from verify.checks.relation import Relation, hold
from verify.checks.variation import (
    Array,
    Ledger,
    Values,
    first_outputs,
    logical_values,
    several_calls_refusal,
    skipped,
    takes,
    vary,
)
from verify.dense import DenseSequence, dense_sequences
from verify.verdict import Finding

NAME = "invariance"
HIDDEN_SIZE = 3.0
"""Hidden keys become N(0, HIDDEN_SIZE^2): a leak is then large against the bound, yet nothing overflows."""

Outputs = Values


def _invariance(run: CaseRun) -> Finding:
    refusal = several_calls_refusal(run)
    if refusal is not None:
        return skipped(NAME, refusal)
    backward = run.contract.capabilities.backward
    first = first_outputs(NAME, run)
    if isinstance(first, Finding):
        return first
    ledger = Ledger(check=NAME, run=run)
    for relation in _relations(run, first, backward):
        if takes(run, relation.varied.case.problem):
            hold(ledger, relation)
    judge_neighbours(ledger, first)
    return ledger.finding("one sequence, one head, one layout and nothing hidden")


def _relations(run: CaseRun, first: Outputs, backward: bool) -> Iterator[Relation]:
    problem = run.case.problem
    # A mask that the candidate draws by itself depends on the place of batch and head.
    movable = problem.dropout_p == 0 or run.contract.capabilities.dropout_mask == "given"
    if problem.batch > 1 and movable:
        yield from alone(run, first, backward)
    if problem.nheads_kv > 1 and movable:
        yield heads_reversed(run, first, backward)
    if problem.page_size:
        yield pages_moved(run, first, backward)
    layout = "bshd" if problem.layout != "bshd" else "sliced"
    varied = vary(run, logical_values(run), replace(problem, layout=layout))
    yield Relation(label=f"layout {layout} for {problem.layout}", varied=varied, backward=backward, expected=first)
    if problem.layout != "broadcast":
        yield from hidden_keys(run, first, backward)


def heads_reversed(run: CaseRun, first: Outputs, backward: bool) -> Relation:
    """Key/value heads in reverse order, each with its query heads."""
    problem = run.case.problem
    kv_heads = np.arange(problem.nheads_kv)[::-1]
    heads = np.concatenate([np.arange(h * problem.group, (h + 1) * problem.group) for h in kv_heads])

    def moved(name: str, array: Array) -> Array:
        if name in ("k", "v", "dk", "dv"):
            return array[..., kv_heads, :]
        if name in ("q", "dout", "out", "dq", "dlse", "lse"):
            return array[..., heads, :]
        if name in ("mask", "block_mask", "bias", "dbias", "dropout_keep"):
            return array if array.shape[1] == 1 else array[:, heads]
        return array[heads] if name in ("alibi_slopes", "sink", "dsink") else array

    varied = vary(run, {name: moved(name, array) for name, array in logical_values(run).items()})
    expected = {name: moved(name, array) for name, array in first.items()}
    return Relation(label="heads reversed", varied=varied, backward=backward, expected=expected)


def pages_moved(run: CaseRun, first: Outputs, backward: bool) -> Relation:
    """Every page lies elsewhere in the pool; the table says where."""
    values = logical_values(run)
    npages = len(values["k"])
    order = np.roll(np.arange(npages), 1)
    new_place = np.argsort(order).astype(np.int32)
    for name in ("k", "v"):
        values[name] = values[name][order]
    values["page_table"] = new_place[values["page_table"]]
    expected = {name: array[order] if name in ("dk", "dv") else array for name, array in first.items()}
    return Relation(label="pages moved", varied=vary(run, values), backward=backward, expected=expected)


def hidden_keys(run: CaseRun, first: Outputs, backward: bool) -> Iterator[Relation]:
    """Keys that a middle row does not see (future ones, if causal) change: rows that see none of them stay."""
    problem, values = run.case.problem, logical_values(run)
    random = np.random.Generator(np.random.PCG64(run.case.seed))
    rows = np.ones(first["out"].shape[:-2], dtype=bool)
    changed = False
    for part in dense_sequences(problem, values):
        seen = _seen_by_any_head(part)
        if seen is None:
            continue
        hidden = ~seen[len(seen) // 2]
        changed |= bool(hidden.any())
        for key in np.flatnonzero(hidden):
            place = key_index(problem, values, part.index, int(key))
            for name in ("k", "v"):
                values[name][place] = HIDDEN_SIZE * random.standard_normal(values[name].shape[-2:])
        start = problem.cu_seqlens_q[part.index] if problem.cu_seqlens_q is not None else 0
        of_sequence = rows if problem.is_ragged else rows[part.index]
        of_sequence[start : start + part.seqlen_q] = ~(seen & hidden).any(axis=1)
    if not changed:
        return

    def untouched(name: str, array: Array) -> Array:
        rows_first = array.swapaxes(-1, -2) if name == "lse" else array
        picked: Array = rows_first[rows]
        return picked

    expected = {name: untouched(name, array) for name, array in first.items() if name in ("out", "lse", "dq")}
    varied = vary(run, values)
    yield Relation(label="hidden keys changed", varied=varied, backward=backward, expected=expected, view=untouched)


def _seen_by_any_head(part: DenseSequence) -> NDArray[np.bool_] | None:
    """bool (rows, keys), or None where nothing is hidden or there is nothing."""
    keep = part.keep
    if keep is None or 0 in keep.shape:
        return None
    return np.asarray(keep.any(axis=0))


INVARIANCE = Check(
    name=NAME,
    summary="one sequence alone or among NaN, heads, pages, strides moved, hidden keys changed: same bits, or in bound",
    calls=6,
    raises=FAULTS,
    function=_invariance,
)
