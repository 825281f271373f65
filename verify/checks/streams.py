"""Stream checks: a candidate works on the current stream and is done when that stream is, on a GPU and on the CPU.

The calls run under the probe of verify.candidates.device_streams: inputs that arrive late, results that are read twice.
"""

from __future__ import annotations

from dataclasses import replace

from verify.candidates.device_streams import EARLY, STREAM_DETAIL
from verify.checks.base import Check, fault_finding
from verify.checks.case_run import CaseRun
from verify.checks.comparison import FAULTS
from verify.checks.variation import Ledger, several_calls_refusal, skipped, with_inputs
from verify.inputs import make_inputs
from verify.verdict import Finding, Status

STREAMS_NAME, DEFERRED_NAME = "streams", "deferred"
LABEL = "inputs late on a stream of its own"
NO_STREAM = "the candidate works on no GPU stream that a call can choose"
MISPLACED = "right on the default stream: it reads or writes on another stream than the current one"
PARTIAL = "inputs had arrived before the call returned: what it launched after that is not judged"


def _streams(run: CaseRun) -> Finding:
    refusal = several_calls_refusal(run)
    if refusal is not None:
        return skipped(STREAMS_NAME, refusal)
    backward = run.contract.capabilities.backward
    # The case's own call comes first: what is compiled and allocated once is then no part of the late one.
    first = run.outcome(backward=backward)
    if first.status is not Status.PASS:
        return fault_finding(STREAMS_NAME, first)
    probed = _probed(run, step=2)
    outcome = probed.outcome(backward=backward)
    details = outcome.reply.route.details if outcome.reply is not None else {}
    if outcome.status is Status.PASS and STREAM_DETAIL not in details:
        return skipped(STREAMS_NAME, NO_STREAM)
    ledger = Ledger(check=STREAMS_NAME, run=run)
    ledger.judge(probed, LABEL, backward=backward)
    finding = ledger.finding()
    if ledger.statuses and outcome.status is Status.PASS and _right_without_probe(run, probed, backward=backward):
        return replace(finding, status=Status.RACE, reasons=(f"{LABEL}: {MISPLACED}", *finding.reasons))
    partial = finding.status is Status.PASS and details.get(STREAM_DETAIL) == EARLY
    return replace(finding, reasons=(PARTIAL,)) if partial else finding


def _deferred(run: CaseRun) -> Finding:
    backward = run.contract.capabilities.backward
    outcome = _probed(run, step=4).outcome(backward=backward)
    if outcome.status is not Status.PASS:
        return fault_finding(DEFERRED_NAME, outcome)
    return Finding(check=DEFERRED_NAME, status=Status.PASS)


def _probed(run: CaseRun, *, step: int) -> CaseRun:
    """The case with other values, under a probe: what an earlier call left in memory is then no right answer.

    The parity of the seed says whether dlse is given, so it is kept.
    """
    case = replace(run.case, seed=(run.case.seed + step) % 2**63)
    probed = with_inputs(run, case, make_inputs(case))
    probed.probe_order = True
    return probed


def _right_without_probe(run: CaseRun, probed: CaseRun, *, backward: bool) -> bool:
    """Whether the same inputs give right results in a call of the usual kind."""
    usual = with_inputs(run, probed.case, probed.facts.inputs)
    ledger = Ledger(check=STREAMS_NAME, run=run)
    ledger.judge(usual, "usual call", backward=backward)
    return not ledger.statuses


STREAMS = Check(
    name=STREAMS_NAME,
    summary="on a GPU: right when inputs arrive late on a non-default stream, done when that stream is",
    calls=3,
    raises=FAULTS,
    function=_streams,
)
DEFERRED = Check(
    name=DEFERRED_NAME,
    summary="outputs do not change after the call has returned (CPU) or its stream is done (GPU)",
    calls=1,
    raises=FAULTS,
    function=_deferred,
)
