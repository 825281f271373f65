"""Determinism check: the same call twice, with another one between, gives the same bits where that is declared."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from verify.checks.base import Check, fault_finding
from verify.checks.case_run import CaseRun
from verify.inputs import make_inputs
from verify.verdict import Finding, Status

NAME = "determinism"


def _determinism(run: CaseRun) -> Finding:
    if not run.contract.capabilities.deterministic:
        return Finding(check=NAME, status=Status.UNSUPPORTED, reasons=("determinism not declared",))
    backward = run.contract.capabilities.backward
    first = run.outcome(backward=backward)
    if first.status is not Status.PASS or first.reply is None:
        return fault_finding(NAME, first)
    other = make_inputs(replace(run.case, seed=(run.case.seed + 1) % 2**63))
    run.ask(other, backward=backward)
    again = run.ask(run.facts.inputs, backward=backward)
    if again.status is not Status.PASS or again.reply is None:
        return fault_finding(NAME, again)
    before, after = first.reply.outputs, again.reply.outputs
    differing = [name for name in before if name not in after or not _same_bits(before[name], after[name])]
    status = Status.NONDETERMINISTIC if differing else Status.PASS
    reasons = tuple(f"{name}: other bits when called again after a different call" for name in differing)
    return Finding(check=NAME, status=status, reasons=reasons)


def _same_bits(first: np.ndarray, second: np.ndarray) -> bool:
    """Equal shape, dtype and bytes; NaN payloads count."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    return bool(np.ascontiguousarray(first).tobytes() == np.ascontiguousarray(second).tobytes())


DETERMINISM = Check(
    name=NAME,
    summary="A, B, A: the same inputs give the same bits after a call with other values in the same shapes",
    calls=2,
    raises=(Status.NONDETERMINISTIC,),
    function=_determinism,
)
