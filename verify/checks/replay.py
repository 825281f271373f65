"""Declared arithmetic: whether out is what the declared tiles and roundings give. Says how well the contract describes
the kernel, never whether the kernel is correct, so a deviation is a reason beside PASS.
"""

from __future__ import annotations

import numpy as np

from verify.checks.base import Check, fault_finding
from verify.checks.case_run import CaseRun
from verify.checks.replay_forward import replay_forward, unreplayable
from verify.checks.variation import several_calls_refusal, skipped
from verify.verdict import Finding, Status

NAME = "declared_arithmetic"


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
    if got is None or got.shape != replay.out.shape:
        return Finding(check=NAME, status=Status.SHAPE, reasons=("out: absent or of a wrong shape",))
    error = np.abs(got.astype(np.float64) - replay.out)
    judged = np.isfinite(error) & np.isfinite(replay.permitted)
    beyond = int((error[judged] > replay.permitted[judged]).sum())
    reasons = (f"deviates from declared arithmetic: {beyond} of {got.size} elements of out",) if beyond else ()
    return Finding(check=NAME, status=Status.PASS, reasons=reasons)


DECLARED_ARITHMETIC = Check(
    name=NAME,
    summary="out against an fp64 replay of the declared tiles and roundings: conformance to the contract, no verdict",
    calls=0,
    raises=(Status.SHAPE,),
    function=_declared_arithmetic,
)
