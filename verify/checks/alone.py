"""One sequence of a batch as a case of its own, and what it must return, cut out of the whole batch's outputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from verify.checks.case_run import CaseRun
from verify.checks.relation import Relation
from verify.checks.variation import Array, Values, logical_values, vary
from verify.problem import AttentionProblem


def alone(run: CaseRun, first: Values, backward: bool) -> Iterator[Relation]:
    """The last sequence with rows and keys, alone; nothing where its problem does not exist on its own."""
    problem = run.case.problem
    sequence = max(index for index in range(problem.batch) if 0 not in problem.lengths(index))
    rows, keys = problem.lengths(sequence)
    fields: dict[str, Any] = {"batch": 1}
    if problem.is_ragged:
        fields |= {"seqlen_q": rows, "seqlen_k": keys, "cu_seqlens_q": (0, rows), "cu_seqlens_k": (0, keys)}
    if problem.seqlens_k is not None:
        fields |= {"seqlens_k": (keys,)}
    single = replace(problem, **fields)
    values = {name: _cut(problem, single, sequence, name, array) for name, array in logical_values(run).items()}
    for name in ("cu_seqlens_q", "cu_seqlens_k"):
        if name in values:
            values[name] = values[name][:2] * 0
            values[name][1] = rows if name == "cu_seqlens_q" else keys
    expected = {
        name: _pages_of(run, sequence, array) if problem.page_size and name in ("dk", "dv") else cut
        for name, array in first.items()
        # Gradients that are sums over the batch have no part that belongs to one sequence.
        if name != "dsink" and not (name == "dbias" and problem.bias_broadcast[0])
        for cut in (_cut(problem, single, sequence, name, array),)
    }

    def view(name: str, array: Array) -> Array:
        return _pages_of(run, sequence, array) if problem.page_size and name in ("dk", "dv") else array

    varied = vary(run, values, single)
    label = f"sequence {sequence} alone"
    yield Relation(label=label, varied=varied, backward=backward, expected=expected, view=view)


def _cut(problem: AttentionProblem, single: AttentionProblem, sequence: int, name: str, array: Array) -> Array:
    """Part of an input or output that belongs to the sequence, in the shape that its own problem gives it."""
    by_row, by_key = ("q", "dout", "out", "dq"), ("k", "v", "dk", "dv")
    planes = ("mask", "bias", "dbias", "dropout_keep")
    if name in planes:
        place = slice(0, 1) if array.shape[0] == 1 else slice(sequence, sequence + 1)
        return array[place, :, : single.seqlen_q, : single.seqlen_k]
    if name == "block_mask":
        blocks = (-(-single.seqlen_q // problem.block_size[0]), -(-single.seqlen_k // problem.block_size[1]))
        return array[sequence : sequence + 1, :, : blocks[0], : blocks[1]]
    if name in ("alibi_slopes", "sink", "cu_seqlens_q", "cu_seqlens_k") or (name in by_key and problem.page_size):
        return array
    if problem.cu_seqlens_q is not None and problem.cu_seqlens_k is not None:
        cu = problem.cu_seqlens_k if name in by_key else problem.cu_seqlens_q
        rows = slice(cu[sequence], cu[sequence + 1])
        return array[rows] if name in by_row + by_key else array[:, rows]
    return array[sequence : sequence + 1]


def _pages_of(run: CaseRun, sequence: int, array: Array) -> Array:
    """Pages that hold the keys of the sequence."""
    problem = run.case.problem
    count = -(-problem.lengths(sequence)[1] // problem.page_size)
    return array[run.facts.inputs.arrays["page_table"][sequence, :count]]
