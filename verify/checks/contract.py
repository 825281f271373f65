"""Contract check: every declared output is there, right in shape and dtype; inputs untouched; nothing refused."""

from __future__ import annotations

from verify.candidate import output_shapes
from verify.checks.base import Check, fault_finding
from verify.checks.case_run import CaseRun
from verify.checks.comparison import output_format
from verify.dtypes import name_of
from verify.verdict import Finding, Status

NAME = "contract"


def _contract(run: CaseRun) -> Finding:
    backward = run.contract.capabilities.backward
    outcome = run.outcome(backward=True) if backward else run.first_outcome()
    if outcome.status is not Status.PASS or outcome.reply is None:
        return fault_finding(NAME, outcome)
    if outcome.mutated_inputs:
        names = ", ".join(outcome.mutated_inputs)
        return Finding(check=NAME, status=Status.MUTATED_INPUT, reasons=(f"inputs written by the call: {names}",))
    if outcome.changed_gaps:
        names = ", ".join(outcome.changed_gaps)
        reason = f"memory around the elements of {names} was written: beyond a tensor's end, padding or stride gaps"
        return Finding(check=NAME, status=Status.OUT_OF_BOUNDS, reasons=(reason,))
    owed = run.expected_outputs(backward=False) + (run.expected_outputs(backward=True) if backward else ())
    shapes = output_shapes(run.case.problem, run.facts.inputs.arrays)
    outputs = outcome.reply.outputs
    wrong_shapes = [
        f"{name}: shape {outputs[name].shape if name in outputs else 'absent'}, expected {shapes[name]}"
        for name in owed
        if name not in outputs or outputs[name].shape != shapes[name]
    ]
    if wrong_shapes:
        return Finding(check=NAME, status=Status.SHAPE, reasons=tuple(wrong_shapes))
    formats = {name: output_format(name, run.arithmetic, run.case.problem.dtype) for name in owed}
    wrong_dtypes = [
        f"{name}: dtype {name_of(outputs[name].dtype)}, expected {form.name}"
        for name, form in formats.items()
        if outputs[name].dtype != form.numpy_dtype
    ]
    status = Status.DTYPE if wrong_dtypes else Status.PASS
    return Finding(check=NAME, status=status, reasons=tuple(wrong_dtypes))


CONTRACT = Check(
    name=NAME,
    summary="count, shape and dtype of the outputs, inputs unchanged by hash, no refusal of what is declared",
    calls=0,
    raises=(
        Status.SHAPE,
        Status.DTYPE,
        Status.MUTATED_INPUT,
        Status.OUT_OF_BOUNDS,
        Status.REFUSED,
        Status.CRASH,
        Status.HANG,
        Status.OUT_OF_MEMORY,
        Status.LAUNCH_ERROR,
    ),
    function=_contract,
)
