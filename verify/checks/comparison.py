"""The checks that compare outputs with the reference: forward (out), lse, backward (each gradient)."""

from __future__ import annotations

import numpy as np

from verify.checks.base import Check, fault_finding, reason_of, status_of
from verify.checks.case_run import CaseRun
from verify.compare import Expected, compare
from verify.contract import Arithmetic
from verify.dtypes import FloatFormat, float_format
from verify.tolerance import Bound
from verify.verdict import Comparison, Finding, Status
from verify.worker import Outcome

FAULTS = tuple(status for status in Status if status not in (Status.PASS, Status.UNSUPPORTED))


def output_format(tensor: str, arithmetic: Arithmetic, dtype: str) -> FloatFormat:
    """Format in which a candidate owes an output: lse in fp32 by default, dsink in fp32, the others as stored."""
    if tensor == "lse":
        return float_format(arithmetic.lse_dtype)
    if tensor == "dsink":
        return float_format("fp32")
    declared = arithmetic.out_dtype if tensor == "out" else arithmetic.grad_dtype
    return float_format(declared or dtype)


def compare_outputs(run: CaseRun, names: tuple[str, ...], outcome: Outcome, *, backward: bool) -> list[Comparison]:
    """Compare the named outputs of an outcome that ran; a missing output compares as a wrong shape."""
    facts = run.judged_facts(outcome)
    with_dlse = backward and run.with_dlse
    reference = facts.reference(backward=backward, with_dlse=with_dlse)
    bounds = facts.bounds(run.arithmetic, backward=backward, with_dlse=with_dlse)
    outputs = outcome.reply.outputs if outcome.reply is not None else {}
    missing = np.empty((0, 0, 0, 0, 0))
    return [compare(outputs.get(name, missing), _expected(name, run, reference[name], bounds[name])) for name in names]


def _expected(name: str, run: CaseRun, values: np.ndarray, bound: Bound) -> Expected:
    arithmetic = run.arithmetic
    tile = (arithmetic.tile_q, arithmetic.tile_k)
    if name in ("dk", "dv"):
        tile = (arithmetic.tile_k, 0)
    form = output_format(name, arithmetic, run.case.problem.dtype)
    return Expected(tensor=name, values=values, bound=bound.total, form=form, tile=tile)


def judge_outputs(run: CaseRun, check: str, names: tuple[str, ...], *, backward: bool) -> Finding:
    """Finding of one comparison check; an outcome that did not run is the finding."""
    if not names:
        return Finding(check=check, status=Status.UNSUPPORTED, reasons=("output not declared",))
    outcome = run.outcome(backward=True) if backward else run.first_outcome()
    if outcome.status is not Status.PASS:
        return fault_finding(check, outcome)
    comparisons = tuple(compare_outputs(run, names, outcome, backward=backward))
    reasons = tuple(reason_of(c) for c in comparisons if not c.accepted)
    return Finding(check=check, status=status_of(comparisons), reasons=reasons, comparisons=comparisons)


def _forward(run: CaseRun) -> Finding:
    names = tuple(name for name in run.expected_outputs(backward=False) if name == "out")
    return judge_outputs(run, "forward", names, backward=False)


def _lse(run: CaseRun) -> Finding:
    names = tuple(name for name in run.expected_outputs(backward=False) if name == "lse")
    return judge_outputs(run, "lse", names, backward=False)


def _backward(run: CaseRun) -> Finding:
    if not run.contract.capabilities.backward:
        return Finding(check="backward", status=Status.UNSUPPORTED, reasons=("backward not declared",))
    return judge_outputs(run, "backward", run.expected_outputs(backward=True), backward=True)


FORWARD = Check(
    name="forward",
    summary="out against the fp64 reference and its derived per-element bound",
    calls=0,
    raises=FAULTS,
    function=_forward,
)
LSE = Check(
    name="lse",
    summary="log-sum-exp against the reference: the most sensitive output",
    calls=0,
    raises=FAULTS,
    function=_lse,
)
BACKWARD = Check(
    name="backward",
    summary="dq, dk, dv (dbias, dsink) for a random dout, and dlse on every second seed where it is taken",
    calls=0,
    raises=FAULTS,
    function=_backward,
)
