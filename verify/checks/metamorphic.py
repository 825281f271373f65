"""Metamorphic check: changes of the inputs whose effect on the outputs is known exactly, bit for bit or in rounding."""

from __future__ import annotations

import numpy as np

from verify.checks.balances import balances
from verify.checks.base import Check
from verify.checks.bitwise_relations import bitwise_relations
from verify.checks.case_run import CaseRun
from verify.checks.comparison import FAULTS
from verify.checks.duality import duality_faults, exchanged
from verify.checks.relation import hold
from verify.checks.rounded_relations import rounded_relations
from verify.checks.single_keys import single_key_faults
from verify.checks.variation import Ledger, Values, first_outputs, several_calls_refusal, skipped, takes
from verify.verdict import Finding, Status
from verify.worker import Outcome

NAME = "metamorphic"


def _metamorphic(run: CaseRun) -> Finding:
    refusal = several_calls_refusal(run)
    if refusal is not None:
        return skipped(NAME, refusal)
    backward = run.contract.capabilities.backward
    first = first_outputs(NAME, run)
    if isinstance(first, Finding):
        return first
    ledger = Ledger(check=NAME, run=run)
    for relation in (*bitwise_relations(run, first, backward), *rounded_relations(run, backward)):
        if takes(run, relation.varied.case.problem):
            hold(ledger, relation)
    for reason in single_key_faults(run, first):
        ledger.fail(Status.NUMERICAL, reason)
    _exchange(ledger, first)
    if backward:
        _balance(ledger, run.outcome(backward=True), first)
    return ledger.finding()


def _exchange(ledger: Ledger, first: Values) -> None:
    """Queries and keys exchanged, where the case admits it."""
    other = exchanged(ledger.run)
    if other is None:
        return
    outputs = ledger.judge(other, "q and k exchanged", backward=False)
    # Overflowed rows are judged element by element; here an infinite sum says nothing.
    with np.errstate(over="ignore", invalid="ignore"):
        for reason in duality_faults(ledger.run, first, other, outputs) if outputs is not None else ():
            ledger.fail(Status.NUMERICAL, reason)


def _balance(ledger: Ledger, outcome: Outcome, outputs: Values) -> None:
    """The sums that must agree in the case's own backward."""
    run = ledger.run
    facts = run.judged_facts(outcome)
    bounds = facts.bounds(run.arithmetic, backward=True, with_dlse=run.with_dlse)
    for balance in balances(facts, outputs, bounds):
        if not balance.holds:
            ledger.fail(Status.NUMERICAL, f"{balance.label} does not hold in sequence {balance.sequence}")


METAMORPHIC = Check(
    name=NAME,
    summary="signs, powers of two, zeros, shifts, orders of rows, keys and columns, q and k exchanged, balanced sums",
    calls=21,
    raises=FAULTS,
    function=_metamorphic,
)
