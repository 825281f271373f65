"""Aggregate check: statistics over all elements that see truncation and lost precision below the per-element bound."""

from __future__ import annotations

import numpy as np

from verify.checks.base import Check, fault_finding
from verify.checks.case_run import CaseRun, Float64
from verify.dtypes import name_of
from verify.tolerance import Bound, aggregates
from verify.verdict import Finding, Status

NAME = "aggregate"
TENSORS = ("out", "dq", "dk", "dv")


def _aggregate(run: CaseRun) -> Finding:
    problem = run.case.problem
    if not aggregates.applicable(problem, run.case.recipe, run.arithmetic):
        return Finding(check=NAME, status=Status.UNSUPPORTED, reasons=("only for low precision and generic values",))
    outcome = run.first_outcome()
    backward = run.contract.capabilities.backward
    if backward:
        outcome = run.outcome(backward=True)
    if outcome.status is not Status.PASS or outcome.reply is None:
        return fault_finding(NAME, outcome)
    facts = run.judged_facts(outcome)
    with_dlse = backward and run.with_dlse
    reference = facts.reference(backward=backward, with_dlse=with_dlse)
    bounds = facts.bounds(run.arithmetic, backward=backward, with_dlse=with_dlse)
    reasons: list[str] = []
    for name in TENSORS:
        got = outcome.reply.outputs.get(name)
        if name not in reference or got is None or got.shape != reference[name].shape:
            continue
        error = got.astype(np.float64) - reference[name]
        if not np.isfinite(error).all():
            reasons.append(f"{name}: non-finite {name_of(got.dtype)} values")
            continue
        if aggregates.rows_are_independent(problem, run.arithmetic, name):
            beyond = aggregates.beyond_rounding(got, reference[name])
            reasons += _judge(name, error, beyond, reference[name], bounds[name])
    return Finding(check=NAME, status=Status.NUMERICAL if reasons else Status.PASS, reasons=tuple(reasons))


def _judge(name: str, error: Float64, beyond: Float64, reference: Float64, bound: Bound) -> list[str]:
    gain = aggregates.gain_score(beyond, reference, bound)
    ratio = aggregates.rms_ratio(error, bound)
    reasons = []
    if not abs(gain) <= aggregates.GAIN_LIMIT:
        reasons.append(f"{name}: gain score {gain:.3g}, limit {aggregates.GAIN_LIMIT}: error follows the values' sign")
    if not ratio <= aggregates.RMS_LIMIT and not aggregates.rms_score(error, bound) <= aggregates.GAIN_LIMIT:
        reasons.append(f"{name}: rms error {ratio:.3g} x the predicted, limit {aggregates.RMS_LIMIT}")
    return reasons


AGGREGATE = Check(
    name=NAME,
    summary="gain score and rms ratio of the whole error (low precision, generic values): truncation, lost precision",
    calls=0,
    raises=(Status.NUMERICAL,),
    function=_aggregate,
)
