"""Sequence check: an answer does not depend on the calls before it, whatever their strides, dtype, mask or storage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from verify.case import Case
from verify.checks.base import Check, fault_finding
from verify.checks.case_run import CaseRun
from verify.checks.comparison import FAULTS
from verify.checks.variation import (
    Ledger,
    owed_outputs,
    several_calls_refusal,
    skipped,
    takes,
    with_inputs,
)
from verify.dtypes import STORAGE_DTYPES
from verify.inputs import make_inputs
from verify.problem import AttentionProblem
from verify.verdict import Finding, Status

NAME = "sequence"


def other_problems(problem: AttentionProblem) -> Iterator[tuple[str, AttentionProblem]]:
    """The problem with other strides, in the other dtypes, and with another mask in the same shapes."""
    yield "other strides", replace(problem, layout="sliced" if problem.layout != "sliced" else "bshd")
    for dtype in STORAGE_DTYPES:
        if dtype != problem.dtype:
            yield "other dtype", replace(problem, dtype=dtype)
    yield "other mask", replace(problem, causal=not problem.causal)
    yield "other scale", replace(problem, softmax_scale=2.0 * problem.softmax_scale)


def _sequence(run: CaseRun) -> Finding:
    refusal = several_calls_refusal(run)
    if refusal is not None:
        return skipped(NAME, refusal)
    backward = run.contract.capabilities.backward
    first = run.outcome(backward=backward)
    if first.status is not Status.PASS or first.reply is None:
        return fault_finding(NAME, first)
    ledger = Ledger(check=NAME, run=run)
    other = _other(run, run.case)
    if not other.has_undeclared_row():
        ledger.judge(_same_storage(run, other, backward=backward), "same storage, new values", backward=backward)
    for label, problem in other_problems(run.case.problem):
        if not takes(run, problem):
            continue
        other = _other(run, replace(run.case, problem=problem))
        if not other.has_undeclared_row():
            ledger.judge(other, f"after it, {label}", backward=False)
    again = with_inputs(run, run.case, run.facts.inputs)
    if not run.contract.capabilities.deterministic:
        ledger.judge(again, "again", backward=backward)
        return ledger.finding()
    outputs = ledger.outputs(again, "again", backward=backward)
    if outputs is not None:
        when = "after calls with other strides, dtypes and masks"
        names = owed_outputs(run, backward=backward)
        ledger.same_bits(first.reply.outputs, outputs, names, Status.NONDETERMINISTIC, when)
    return ledger.finding()


def _same_storage(run: CaseRun, other: CaseRun, *, backward: bool) -> CaseRun:
    """Asks once with a copy of the inputs and overwrites it: pointers, shapes and strides stay, the bytes do not.

    The layout of the candidate's memory follows the addresses of the buffers, so it is the same storage there too.
    """
    storage = run.facts.inputs.copy()
    run.ask(storage, backward=backward)
    for name, array in other.facts.inputs.arrays.items():
        storage.arrays[name][...] = array
    return with_inputs(run, other.case, storage)


def _other(run: CaseRun, case: Case) -> CaseRun:
    """Another case with values of its own. The parity of the seed says whether dlse is given, so it is kept."""
    other = replace(case, seed=(case.seed + 2) % 2**63)
    return with_inputs(run, other, make_inputs(other))


SEQUENCE = Check(
    name=NAME,
    summary="same storage with new bytes, then other strides, dtypes, mask and scale, then the first call again",
    calls=8,
    raises=FAULTS,
    function=_sequence,
)
