"""Declared arithmetic: whether out and the gradients are what the declared tiles and roundings give. Says how well the
contract describes the kernel, never whether the kernel is correct, so a deviation is a reason beside PASS.
"""

from __future__ import annotations

from collections.abc import Mapping

from verify.checks.base import Check, fault_finding
from verify.checks.case_run import CaseRun
from verify.checks.replay_backward import replay_backward, unreplayable_backward
from verify.checks.replay_forward import replay_forward, unreplayable
from verify.checks.variation import first_outputs, several_calls_refusal, skipped
from verify.verdict import Finding, Status

NAME, BACKWARD_NAME = "declared_arithmetic", "declared_backward"


def _declared_arithmetic(run: CaseRun) -> Finding:
    refusal = several_calls_refusal(run) or unreplayable(run.arithmetic)
    if refusal is not None:
        return skipped(NAME, refusal)
    outcome = run.first_outcome()
    if outcome.status is not Status.PASS or outcome.reply is None:
        return fault_finding(NAME, outcome)
    got = outcome.reply.outputs.get("out")
    facts = run.judged_facts(outcome)
    tile_k = int(outcome.reply.route.details.get("tile_k", run.arithmetic.tile_k))
    replay = replay_forward(facts, run.arithmetic, tile_k)
    if got is None or got.shape != replay.values.shape:
        return Finding(check=NAME, status=Status.SHAPE, reasons=("out: absent or of a wrong shape",))
    beyond = replay.beyond(got)
    return Finding(check=NAME, status=Status.PASS, reasons=_deviations({"out": (beyond, got.size)}))


def _declared_backward(run: CaseRun) -> Finding:
    able = run.contract.capabilities
    refusal = several_calls_refusal(run) or unreplayable_backward(run.case.problem, run.arithmetic)
    if not able.backward or not {"out", "lse"} <= set(able.outputs):
        refusal = "backward, out or lse not declared"
    if refusal is not None:
        return skipped(BACKWARD_NAME, refusal)
    first = first_outputs(BACKWARD_NAME, run)
    if isinstance(first, Finding):
        return first
    facts = run.judged_facts(run.outcome(backward=True))
    replays = replay_backward(facts, run.arithmetic, first, with_dlse=run.with_dlse)
    counts = {name: (replay.beyond(first[name]), first[name].size) for name, replay in replays.items() if name in first}
    return Finding(check=BACKWARD_NAME, status=Status.PASS, reasons=_deviations(counts))


def _deviations(counts: Mapping[str, tuple[int, int]]) -> tuple[str, ...]:
    """One line for each output that deviates; (elements beyond, all elements) by name."""
    return tuple(
        f"deviates from declared arithmetic: {beyond} of {size} elements of {name}"
        for name, (beyond, size) in counts.items()
        if beyond
    )


DECLARED_ARITHMETIC = Check(
    name=NAME,
    summary="out against an fp64 replay of the declared tiles and roundings: conformance to the contract, no verdict",
    calls=0,
    raises=(Status.SHAPE,),
    function=_declared_arithmetic,
)
DECLARED_BACKWARD = Check(
    name=BACKWARD_NAME,
    summary="dq, dk, dv against an fp64 replay of the declared roundings of P and dS: conformance, no verdict",
    calls=0,
    raises=(Status.SHAPE,),
    function=_declared_backward,
)
