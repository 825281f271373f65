"""Poison check: what lies in gaps, padding and unused pages changes no output, be it NaN, inf, 1e30 or zero."""

from __future__ import annotations

import numpy as np

from verify.checks.base import Check, fault_finding
from verify.checks.case_run import CaseRun
from verify.checks.comparison import FAULTS
from verify.checks.variation import Ledger, owed_outputs, skipped, with_inputs
from verify.inputs import Inputs, make_inputs
from verify.layouts import GUARD_ELEMENTS
from verify.verdict import Finding, Status

NAME = "poison"
OTHERS = ("inf", "1e30", "zero")
"""Poisons beside the NaN that every case has. Only a finite one can enter a result unseen."""


def poisoned_region(clean: Inputs, poisoned: Inputs) -> bool:
    """Whether two inputs of a case differ inside the span of an array: elements that no kernel may use."""
    inside = slice(GUARD_ELEMENTS, -GUARD_ELEMENTS)
    pairs = ((clean.buffers[name][inside], buffer[inside]) for name, buffer in poisoned.buffers.items())
    return any(np.ascontiguousarray(a).tobytes() != np.ascontiguousarray(b).tobytes() for a, b in pairs)


def _poison(run: CaseRun) -> Finding:
    if not poisoned_region(run.facts.inputs, make_inputs(run.case, poison="zero")):
        return skipped(NAME, "no gaps, padding or unused pages")
    backward = run.contract.capabilities.backward
    first = run.outcome(backward=backward)
    if first.status is not Status.PASS or first.reply is None:
        return fault_finding(NAME, first)
    ledger = Ledger(check=NAME, run=run)
    exact = run.contract.capabilities.deterministic
    for poison in OTHERS:
        varied = with_inputs(run, run.case, make_inputs(run.case, poison=poison))
        if not exact:
            ledger.judge(varied, poison, backward=backward)
            continue
        outputs = ledger.outputs(varied, poison, backward=backward)
        if outputs is not None:
            when = f"when unused memory holds {poison} instead of nan"
            names = owed_outputs(run, backward=backward)
            ledger.same_bits(first.reply.outputs, outputs, names, Status.OUT_OF_BOUNDS, when)
    return ledger.finding()


POISON = Check(
    name=NAME,
    summary="NaN, inf, 1e30 or zero in gaps, padding and unused pages give the same bits",
    calls=len(OTHERS),
    raises=FAULTS,
    function=_poison,
)
