"""Prefill check: what an output buffer holds before the call changes nothing of what it holds after it."""

from __future__ import annotations

from dataclasses import replace

from verify.candidates.output_buffers import PREFILL_DETAIL
from verify.checks.base import Check, fault_finding
from verify.checks.case_run import CaseRun
from verify.checks.comparison import FAULTS
from verify.checks.variation import Ledger, owed_outputs, skipped
from verify.verdict import Finding, Status

NAME = "prefill"


def _prefill(run: CaseRun) -> Finding:
    backward = run.contract.capabilities.backward
    first = run.outcome(backward=backward)
    if first.status is not Status.PASS or first.reply is None:
        return fault_finding(NAME, first)
    if PREFILL_DETAIL not in first.reply.route.details:
        return skipped(NAME, "the candidate makes its own outputs")
    facts = replace(run.facts, reference_ms=0.0, bound_ms=0.0)
    varied = CaseRun(facts=facts, contract=run.contract, session=run.session, prefill="finite")
    ledger = Ledger(check=NAME, run=run)
    label = "outputs that start finite"
    if not run.contract.capabilities.deterministic:
        ledger.judge(varied, label, backward=backward)
        return ledger.finding()
    outputs = ledger.outputs(varied, label, backward=backward)
    if outputs is not None:
        when = "when it starts as finite numbers instead of NaN: left unwritten, or added to"
        ledger.same_bits(first.reply.outputs, outputs, owed_outputs(run, backward=backward), Status.UNWRITTEN, when)
    return ledger.finding()


PREFILL = Check(
    name=NAME,
    summary="output buffers that start as NaN or as finite numbers end with the same bits; guard bands stay",
    calls=1,
    raises=FAULTS,
    function=_prefill,
)
