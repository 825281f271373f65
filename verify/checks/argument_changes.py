"""One change for each argument that a case uses: scale, masks, biases, softcap, sink, dropout, lengths, dlse."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from verify.checks.case_run import CaseRun
from verify.checks.places import key_index
from verify.checks.variation import Values, logical_values
from verify.problem import AttentionProblem

BY_PLACE = ("mask", "block_mask", "bias", "dropout_keep")
"""Arrays whose shape follows the longest sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The case with one argument changed."""

    argument: str
    problem: AttentionProblem
    values: Values


def changes_of(run: CaseRun) -> Iterator[Change]:
    """The changes that the case admits."""
    problem, values = run.case.problem, logical_values(run)

    def change(argument: str, arrays: Values | None = None, **fields: Any) -> Change:
        return Change(argument=argument, problem=replace(problem, **fields), values=values | (arrays or {}))

    yield change("softmax_scale", softmax_scale=1.25 * problem.softmax_scale)
    if problem.causal:
        yield change("causal", causal=False)
    diagonal = problem.causal or problem.window is not None
    if diagonal and problem.seqlen_q != problem.seqlen_k:
        other = "top_left" if problem.alignment == "bottom_right" else "bottom_right"
        yield change("alignment", alignment=other)
    if problem.window is not None:
        left, right = problem.window
        if left is not None:
            yield change("window", window=(left + 1, right))
        if right is not None:
            yield change("window", window=(left, right + 1))
    if problem.softcap > 0:
        yield change("softcap", softcap=0.5 * problem.softcap)
    if problem.dropout_p > 0:
        yield change("dropout_p", dropout_p=0.5 * problem.dropout_p)
    for name, array in _changed_arrays(values):
        yield change(name, {name: array})
    if problem.is_ragged and problem.bias != "additive":
        # A longer sequence would read the bias where it is poison.
        yield from _moved_boundaries(problem, values)
    if problem.seqlens_k is not None and max(problem.seqlens_k) > 1:
        yield _shorter(problem, values)
    if problem.page_size:
        yield from _shared_page(problem, values)
    if run.with_dlse and run.contract.capabilities.backward:
        yield change("dlse", {"dlse": -2 * values["dlse"]})


def _changed_arrays(values: Values) -> Iterator[tuple[str, Any]]:
    """Arrays beside the operands. Every second key of a mask is negated: hidden ones appear, visible ones vanish."""
    for name in ("mask", "block_mask"):
        if name in values:
            changed = values[name].copy()
            changed[..., ::2] = ~changed[..., ::2]
            yield name, changed
    if "bias" in values:
        # What -inf hides stays hidden: +inf would make the row NaN.
        hidden = np.isneginf(values["bias"])
        yield "bias", np.where(hidden, values["bias"], -values["bias"]).astype(values["bias"].dtype)
    if "alibi_slopes" in values:
        yield "alibi_slopes", 2 * values["alibi_slopes"]
    if "sink" in values:
        yield "sink", values["sink"] + np.float32(2)


def _moved_boundaries(problem: AttentionProblem, values: Values) -> Iterator[Change]:
    """One key, or one row, moves from a sequence to its neighbour."""
    for name, longest in (("cu_seqlens_k", "seqlen_k"), ("cu_seqlens_q", "seqlen_q")):
        cu: tuple[int, ...] = getattr(problem, name)
        for place in range(1, len(cu) - 1):
            if cu[place] > cu[place - 1]:
                moved = (*cu[:place], cu[place] - 1, *cu[place + 1 :])
                size = max(b - a for a, b in pairwise(moved))
                # Arrays over (longest row, longest key) keep their shape only if the longest sequence does.
                if size == getattr(problem, longest) or not any(array in values for array in BY_PLACE):
                    fields: dict[str, Any] = {name: moved, longest: size}
                    arrays = values | {name: np.array(moved, dtype=np.int32)}
                    yield Change(argument=name, problem=replace(problem, **fields), values=arrays)
                break


def _shared_page(problem: AttentionProblem, values: Values) -> Iterator[Change]:
    """The second page of a sequence becomes its first one, whose keys are all valid."""
    for sequence in range(problem.batch):
        if problem.lengths(sequence)[1] > problem.page_size:
            table = values["page_table"].copy()
            table[sequence, 1] = table[sequence, 0]
            yield Change(argument="page_table", problem=problem, values=values | {"page_table": table})
            return


def _shorter(problem: AttentionProblem, values: Values) -> Change:
    """Every sequence loses its last key, whose place becomes padding."""
    lengths = tuple(max(0, length - 1) for length in problem.seqlens_k or ())
    arrays = {name: array.copy() for name, array in values.items()} | {"seqlens_k": np.array(lengths, dtype=np.int32)}
    if problem.layout != "broadcast":
        for sequence, length in enumerate(lengths):
            if problem.lengths(sequence)[1]:
                index = key_index(problem, values, sequence, length)
                arrays["k"][index] = arrays["v"][index] = np.nan
    return Change(argument="seqlens_k", problem=replace(problem, seqlens_k=lengths), values=arrays)
