"""Argument sensitivity: every argument that the case uses changes the result, and changes it as the reference says."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from verify.checks.argument_changes import Change, changes_of
from verify.checks.base import Check
from verify.checks.case_run import CaseRun
from verify.checks.comparison import FAULTS
from verify.checks.variation import Ledger, several_calls_refusal, skipped, takes, vary
from verify.verdict import Finding

NAME = "sensitivity"


def _sensitivity(run: CaseRun) -> Finding:
    refusal = several_calls_refusal(run)
    if refusal is not None:
        return skipped(NAME, refusal)
    ledger = Ledger(check=NAME, run=run)
    for change, varied in _takeable(run):
        backward = change.argument == "dlse"
        if has_effect(run, varied, backward=backward):
            ledger.judge(varied, f"{change.argument} changed", backward=backward)
    return ledger.finding("no argument whose change the bounds could tell")


def _takeable(run: CaseRun) -> Iterator[tuple[Change, CaseRun]]:
    for change in changes_of(run):
        if takes(run, change.problem):
            yield change, vary(run, change.values, change.problem)


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
