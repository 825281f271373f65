"""Power check: whether the case could fail. Wrong answers made from the reference must lie outside its own bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from verify.checks.base import Check
from verify.checks.case_run import CaseRun
from verify.checks.comparison import output_format
from verify.compare import Expected, compare
from verify.oracle import Float64, reference_outputs
from verify.verdict import Finding, Status

NAME = "power"
NO_SCORES = 1e-30
"""A softmax scale that makes every score vanish."""
HIDING = ("mask", "block_mask", "bias", "alibi_slopes", "sink", "dropout_keep")

Wrong = Mapping[str, Float64]


def _zeros(run: CaseRun, right: Wrong) -> Wrong:
    return {name: np.zeros_like(values) for name, values in right.items()}


def _mean_of_v(run: CaseRun, right: Wrong) -> Wrong:
    """Every row is the mean of the values of its sequence."""
    unmasked = replace(run.case.problem, causal=False, window=None, pattern="none", dropout_p=0.0)
    plain = replace(unmasked, bias="none", bias_hidden=0.0, softcap=0.0, sink=False)
    problem = replace(plain, softmax_scale=NO_SCORES)
    arrays = {name: array for name, array in run.facts.inputs.arrays.items() if name not in HIDING}
    return {"out": reference_outputs(problem, arrays, backward=False).outputs["out"]}


def _scale_1pct(run: CaseRun, right: Wrong) -> Wrong:
    """The softmax scale is 1 % too large."""
    problem = replace(run.case.problem, softmax_scale=1.01 * run.case.problem.softmax_scale)
    return reference_outputs(problem, run.facts.inputs.arrays, backward=False).outputs


def _permuted_rows(run: CaseRun, right: Wrong) -> Wrong:
    """Rows (and, beyond the last, heads and sequences) shifted by one place."""
    out = right["out"]
    return {
        "out": np.roll(out.reshape(-1, out.shape[-1]), 1, axis=0).reshape(out.shape),
        "lse": np.roll(right["lse"], 1),
    }


WRONG_ANSWERS: Mapping[str, Callable[[CaseRun, Wrong], Wrong]] = {
    "zeros": _zeros,
    "mean of v": _mean_of_v,
    "scale 1 % too large": _scale_1pct,
    "permuted rows": _permuted_rows,
}


def accepted_wrong_answers(run: CaseRun) -> tuple[str, ...]:
    """Names of the wrong answers that the case's bounds accept in every forward output that the candidate returns."""
    names = run.expected_outputs(backward=False)
    right = run.facts.reference(backward=False, with_dlse=False)
    return tuple(
        label
        for label, build in WRONG_ANSWERS.items()
        if all(_accepts(run, name, values) for name, values in build(run, right).items() if name in names)
    )


def _accepts(run: CaseRun, name: str, values: Float64) -> bool:
    form = output_format(name, run.arithmetic, run.case.problem.dtype)
    right = run.facts.reference(backward=False, with_dlse=False)[name]
    bound = run.facts.bounds(run.arithmetic, backward=False, with_dlse=False)[name].total
    expected = Expected(tensor=name, values=right, bound=bound, form=form)
    with np.errstate(over="ignore", invalid="ignore"):
        return compare(values.astype(form.numpy_dtype), expected).accepted


def _power(run: CaseRun) -> Finding:
    accepted = accepted_wrong_answers(run)
    reasons = tuple(f"{label} would be accepted" for label in accepted)
    return Finding(check=NAME, status=Status.POWERLESS if accepted else Status.PASS, reasons=reasons)


POWER = Check(
    name=NAME,
    summary="zeros, mean of v, a scale off by 1 % and permuted rows lie outside the case's own bounds",
    calls=0,
    raises=(Status.POWERLESS,),
    function=_power,
)
