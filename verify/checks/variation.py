"""The same question with other inputs: a case run whose values or problem are changed, and a ledger of what it shows.

A variation is judged like the case itself: reference and bounds of the changed inputs. Nothing is tuned here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verify.candidate import output_shapes
from verify.case import Case
from verify.checks.base import fault_finding, reason_of, status_of
from verify.checks.case_run import CaseFacts, CaseRun
from verify.checks.comparison import compare_outputs
from verify.inputs import Inputs, lay_out
from verify.problem import AttentionProblem
from verify.verdict import Comparison, Finding, Status

Array = NDArray[Any]
Values = dict[str, Array]

WORK_LIMIT = 2**19
"""Scores (batch * nheads * seqlen_q * seqlen_k) up to which a check may call several times: about a second of reference
and bounds for each call beyond it."""


def too_large(run: CaseRun) -> bool:
    """Whether the case is too large for checks of several calls with a reference each."""
    p = run.case.problem
    return p.batch * p.nheads * p.seqlen_q * p.seqlen_k > WORK_LIMIT


def is_empty(run: CaseRun) -> bool:
    """Whether no sequence has both rows and keys."""
    p = run.case.problem
    return all(0 in p.lengths(sequence) for sequence in range(p.batch))


def skipped(check: str, reason: str) -> Finding:
    """Finding of a check that does not apply."""
    return Finding(check=check, status=Status.UNSUPPORTED, reasons=(reason,))


def several_calls_refusal(run: CaseRun) -> str | None:
    """Why a check of several calls does not apply to the case, or None."""
    if is_empty(run):
        return "no sequence with rows and keys"
    return f"more than {WORK_LIMIT} scores" if too_large(run) else None


def logical_values(run: CaseRun) -> Values:
    """Private contiguous copies of the case's arrays in logical shape, what no kernel may use included."""
    return {name: np.array(array, order="C") for name, array in run.facts.inputs.arrays.items()}


def vary(run: CaseRun, values: Mapping[str, Array], problem: AttentionProblem | None = None) -> CaseRun:
    """The run with other values, and another problem where one is given, over fresh poisoned buffers."""
    problem = problem or run.case.problem
    return with_inputs(run, replace(run.case, problem=problem), lay_out(problem, values))


def with_inputs(run: CaseRun, case: Case, inputs: Inputs) -> CaseRun:
    """The run with other inputs on the same candidate."""
    return CaseRun(facts=CaseFacts(case=case, inputs=inputs), contract=run.contract, session=run.session)


def takes(run: CaseRun, problem: AttentionProblem) -> bool:
    """Whether the candidate declares a problem."""
    return run.contract.capabilities.refusal(problem) is None


def taken(run: CaseRun, problem: AttentionProblem, values: Mapping[str, Array]) -> CaseRun | None:
    """The run with another problem and values; None where the candidate does not declare it, or some row of it."""
    if not takes(run, problem):
        return None
    varied = vary(run, values, problem)
    return None if varied.has_undeclared_row() else varied


def owed_outputs(run: CaseRun, *, backward: bool) -> tuple[str, ...]:
    """Names of all outputs that the candidate owes in one call."""
    forward = run.expected_outputs(backward=False)
    return forward + run.expected_outputs(backward=True) if backward else forward


def same_bits(first: Array, second: Array) -> bool:
    """Equal shape, dtype and bits; +0 and -0 are equal, as everywhere."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    equal = (first == second) | ((first != first) & (second != second))
    return bool(equal.all())


def first_outputs(check: str, run: CaseRun) -> Values | Finding:
    """What the candidate owes and returned for the case itself; a finding where it did not, or in a wrong shape."""
    backward = run.contract.capabilities.backward
    outcome = run.outcome(backward=backward)
    if outcome.status is not Status.PASS or outcome.reply is None:
        return fault_finding(check, outcome)
    outputs = outcome.reply.outputs
    shapes = output_shapes(run.case.problem, run.facts.inputs.arrays)
    owed = owed_outputs(run, backward=backward)
    wrong = [name for name in owed if name not in outputs or outputs[name].shape != shapes[name]]
    if wrong:
        return Finding(check=check, status=Status.SHAPE, reasons=(f"{', '.join(wrong)} absent or of a wrong shape",))
    return {name: outputs[name] for name in owed}


@dataclass(slots=True, kw_only=True)
class Ledger:
    """What the variations of one check on one case showed."""

    check: str
    run: CaseRun
    """The case's own run: time spent on variations is booked on it."""
    judged: int = 0
    """Questions that could have failed."""
    case_compared: bool = False
    statuses: list[Status] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)

    def outputs(self, varied: CaseRun, label: str, *, backward: bool) -> Mapping[str, Array] | None:
        """Outputs of a variation, or None, with the fault noted, where it did not run."""
        outcome = varied.outcome(backward=backward)
        self._book(varied)
        self.judged += 1
        if outcome.status is Status.PASS and outcome.reply is not None:
            return outcome.reply.outputs
        fault = fault_finding(self.check, outcome)
        self.fail(fault.status, f"{label}: {fault.reasons[0]}", *fault.reasons[1:])
        return None

    def judge(self, varied: CaseRun, label: str, *, backward: bool) -> Mapping[str, Array] | None:
        """Ask and compare the outputs of a variation with its own reference and bounds; None where it did not run."""
        outputs = self.outputs(varied, label, backward=backward)
        if outputs is not None:
            self.compare(varied, label, backward=backward)
        return outputs

    def compare(self, varied: CaseRun, label: str, *, backward: bool) -> None:
        """Compare all outputs of a variation that ran with its own reference and bounds."""
        outcome = varied.outcome(backward=backward)
        for of_backward in (False, True) if backward else (False,):
            names = varied.expected_outputs(backward=of_backward)
            if names:
                self._note(compare_outputs(varied, names, outcome, backward=of_backward), label)
        self._book(varied)

    def compare_case(self) -> None:
        """Compare the case's own outputs with its reference and bounds, once."""
        if not self.case_compared:
            self.case_compared = True
            self.compare(self.run, "unchanged", backward=self.run.contract.capabilities.backward)

    def same_bits(
        self, before: Mapping[str, Array], after: Mapping[str, Array], names: tuple[str, ...], status: Status, when: str
    ) -> None:
        """Note the status for every named output whose bits differ."""
        for name in names:
            if name not in before or name not in after or not same_bits(before[name], after[name]):
                self.fail(status, f"{name}: other bits {when}")

    def fail(self, status: Status, *reasons: str) -> None:
        """Note a failure."""
        self.statuses.append(status)
        self.reasons += reasons

    def finding(self, otherwise: str = "nothing to vary") -> Finding:
        """Worst status of what was noted; UNSUPPORTED with that reason where nothing was asked."""
        if not self.judged:
            return skipped(self.check, otherwise)
        order = list(Status)
        status = min(self.statuses, key=order.index, default=Status.PASS)
        return Finding(
            check=self.check, status=status, reasons=tuple(self.reasons), comparisons=tuple(self.comparisons)
        )

    def _note(self, comparisons: list[Comparison], label: str) -> None:
        failing = [c for c in comparisons if not c.accepted]
        for comparison in failing:
            self.fail(status_of((comparison,)), f"{label}: {reason_of(comparison)}")
        self.comparisons += failing

    def _book(self, varied: CaseRun) -> None:
        if varied is self.run:
            return
        self.run.candidate_ms += varied.candidate_ms
        self.run.facts.reference_ms += varied.facts.reference_ms
        self.run.facts.bound_ms += varied.facts.bound_ms
        varied.candidate_ms = varied.facts.reference_ms = varied.facts.bound_ms = 0.0
