"""Argument sensitivity: every argument that the case uses changes the result, and changes it as the reference says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from verify.checks.argument_changes import Change, changes_of
from verify.checks.base import Check
from verify.checks.case_run import CaseRun
from verify.checks.comparison import FAULTS
from verify.checks.variation import Ledger, several_calls_refusal, skipped, taken, with_inputs
from verify.verdict import Finding, Status

NAME = "sensitivity"
LOG_CHANCE = -30.0
"""Natural logarithm of the chance (1e-13) that two honest masks are taken for one."""


def _sensitivity(run: CaseRun) -> Finding:
    refusal = several_calls_refusal(run)
    if refusal is not None:
        return skipped(NAME, refusal)
    ledger = Ledger(check=NAME, run=run)
    for change, varied in _takeable(run):
        backward = change.argument == "dlse"
        if has_effect(run, varied, backward=backward):
            ledger.judge(varied, f"{change.argument} changed", backward=backward)
    if run.case.problem.dropout_p > 0 and run.contract.capabilities.dropout_mask == "own":
        _judge_seed(ledger)
    return ledger.finding("no argument whose change the bounds could tell")


def _judge_seed(ledger: Ledger) -> None:
    """Another seed draws another mask, where the mask has room to differ."""
    run = ledger.run
    first = run.first_outcome()
    other = with_inputs(run, replace(run.case, seed=(run.case.seed + 2) % 2**63), run.facts.inputs)
    outputs = ledger.outputs(other, "seed changed", backward=False)
    if outputs is None or first.reply is None or "dropout_keep" not in first.reply.outputs:
        return
    before, after = first.reply.outputs["dropout_keep"], outputs.get("dropout_keep")
    # Two masks of n draws agree by chance with probability ((1-p)^2 + p^2)^n.
    p = run.case.problem.dropout_p
    chance = before.size * np.log((1 - p) ** 2 + p**2)
    if chance < LOG_CHANCE and after is not None and np.array_equal(before, after):
        ledger.fail(Status.NUMERICAL, "seed changed: the same dropout mask")


def _takeable(run: CaseRun) -> Iterator[tuple[Change, CaseRun]]:
    for change in changes_of(run):
        varied = taken(run, change.problem, change.values)
        if varied is not None:
            yield change, varied


def has_effect(run: CaseRun, varied: CaseRun, *, backward: bool) -> bool:
    """Whether an answer within the bounds of the unchanged case lies outside those of the changed one."""
    key = {"backward": backward, "with_dlse": backward and run.with_dlse}
    names = run.expected_outputs(backward=backward)
    before, after = run.facts.reference(**key), varied.facts.reference(**key)
    for name in names:
        if before[name].shape != after[name].shape:
            return True
        old = run.facts.bounds(run.arithmetic, **key)[name].total
        new = varied.facts.bounds(run.arithmetic, **key)[name].total
        same = before[name] == after[name]
        with np.errstate(invalid="ignore"):
            apart = np.where(np.isfinite(before[name] - after[name]), np.abs(before[name] - after[name]), np.inf)
        if (~same & (apart > old + new)).any():
            return True
    return False


SENSITIVITY = Check(
    name=NAME,
    summary="each argument in use (scale, masks, biases, softcap, sink, dropout, lengths, dlse) changes the result",
    calls=4,
    raises=FAULTS,
    function=_sensitivity,
)
