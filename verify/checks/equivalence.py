"""Equivalence check: the same attention stated as another problem: masks that hide nothing, ragged, cut or padded."""

from __future__ import annotations

from verify.checks.base import Check
from verify.checks.case_run import CaseRun
from verify.checks.comparison import FAULTS
from verify.checks.cut_problems import cut_problems
from verify.checks.idle_arguments import idle_arguments
from verify.checks.relation import hold
from verify.checks.variation import Ledger, first_outputs, several_calls_refusal, skipped
from verify.verdict import Finding

NAME = "equivalence"


def _equivalence(run: CaseRun) -> Finding:
    refusal = several_calls_refusal(run)
    if refusal is not None:
        return skipped(NAME, refusal)
    if run.case.problem.dropout_p > 0 and run.contract.capabilities.dropout_mask == "own":
        return skipped(NAME, "the candidate draws its own dropout mask")
    backward = run.contract.capabilities.backward
    first = first_outputs(NAME, run)
    if isinstance(first, Finding):
        return first
    ledger = Ledger(check=NAME, run=run)
    for relation in (*idle_arguments(run, first, backward), *cut_problems(run, first, backward)):
        hold(ledger, relation)
    return ledger.finding("no other problem that the candidate takes is the same attention")


EQUIVALENCE = Check(
    name=NAME,
    summary="masks, biases and sinks that change nothing, ragged for dense, a prefix, last rows, padded head dims",
    calls=8,
    raises=FAULTS,
    function=_equivalence,
)
