"""Writes a fault as a pytest file that stands alone: inputs, expected values and bounds inline, the candidate by name.

What no comparison shows (crash, hang, race, other bits on a second call) is asked of the checks by the case id.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verify.checks.case_run import CaseRun
from verify.checks.comparison import output_format
from verify.dtypes import name_of
from verify.fuzz.state import Fault
from verify.problem import AttentionProblem
from verify.verdict import Status

Array = NDArray[Any]

INLINE_STATUSES = (Status.NUMERICAL, Status.NONFINITE, Status.SHAPE, Status.DTYPE)
INLINE_CHECKS = ("contract", "forward", "lse", "backward")
MAX_INLINE = 4096
"""Most elements of all arrays together that are written out."""
_LINE = 100

_BY_CASE_ID = '''"""{title}

Replay: {replay}
"""

from verify.fuzz import check_case
from verify.verdict import Status

CANDIDATE = {candidate!r}
CASE_ID = (
{case_id}
)


def test_{name}() -> None:
    # In a process of its own: the fault may end or hang it.
    verdict = check_case(CASE_ID, CANDIDATE, checks=({check!r},), in_process=False)
    assert verdict.status is Status.PASS, [finding.reasons for finding in verdict.findings]
'''

_INLINE = '''"""{title}

Replay: {replay}
"""

import ml_dtypes
import numpy as np

from verify.candidate import Call
from verify.candidates import load
from verify.inputs import lay_out
from verify.problem import AttentionProblem

CANDIDATE = {candidate!r}
DTYPES = {{"bf16": ml_dtypes.bfloat16, "fp16": np.float16, "fp32": np.float32, "fp64": np.float64}}


def array(shape, dtype, text):
    """An array from its values in C order; `4*1.5` stands for four times 1.5."""
    values = []
    for token in text.split():
        count, star, value = token.rpartition("*")
        values += [float(value)] * (int(count) if star else 1)
    return np.array(values, np.float64).reshape(shape).astype(DTYPES.get(dtype, dtype))


PROBLEM = AttentionProblem(
{problem}
)
VALUES = {{
{values}
}}
EXPECTED = {{
{expected}
}}
BOUND = {{
{bound}
}}
OUT_DTYPE = {{
{dtypes}
}}


def test_{name}() -> None:
    inputs = lay_out(PROBLEM, VALUES)
    call = Call(problem=PROBLEM, arrays=inputs.arrays, backward={backward}, with_dlse={with_dlse}, seed={seed})
    outputs = load(CANDIDATE).run(call).outputs
    for name, expected in EXPECTED.items():
        got = outputs[name]
        assert got.shape == expected.shape, name
        assert got.dtype == DTYPES.get(OUT_DTYPE[name], OUT_DTYPE[name]), name
        error = np.abs(got.astype(np.float64) - expected)
        right = (error <= BOUND[name]) | (got == expected) | (np.isnan(got) & np.isnan(expected))
        wrong = ~right
        assert right.all(), f"{{name}}: got {{got[wrong]}}, expected {{expected[wrong]}}, bound {{BOUND[name][wrong]}}"
'''


def pytest_source(fault: Fault, run: CaseRun) -> str:
    """Source of a test that fails while the fault is there and passes once it is gone.

    Parameters
    ----------
    fault
        What was found.
    run
        Its smallest case on its candidate; asked only for inputs, reference and bounds.
    """
    key = fault.key
    head = {
        "title": f"{fault.candidate}: {key}",
        "replay": f"python -m verify repro '{fault.case_id}' --candidate {fault.candidate}",
        "candidate": fault.candidate,
        "name": "_".join(part for part in (key.check, key.tensor, "holds") if part),
    }
    inputs = run.facts.inputs
    backward = run.contract.capabilities.backward
    own_mask = run.case.problem.dropout_p > 0 and run.contract.capabilities.dropout_mask == "own"
    small = sum(array.size for array in inputs.arrays.values()) <= MAX_INLINE
    if not (small and not own_mask and key.status in INLINE_STATUSES and key.check in INLINE_CHECKS):
        return _BY_CASE_ID.format(**head, check=key.check, case_id=_wrapped(fault.case_id))
    reference = run.facts.reference(backward=backward, with_dlse=run.with_dlse)
    bounds = run.facts.bounds(run.arithmetic, backward=backward, with_dlse=run.with_dlse)
    names = run.expected_outputs(backward=False) + (run.expected_outputs(backward=True) if backward else ())
    return _INLINE.format(
        **head,
        problem="\n".join(_field_lines(run.case.problem)),
        values="\n".join(_entries(inputs.arrays)),
        expected="\n".join(_entries({name: np.asarray(reference[name]) for name in names})),
        bound="\n".join(_entries({name: np.asarray(bounds[name].total) for name in names})),
        dtypes="\n".join(f"    {name!r}: {_dtype_of(run, name)!r}," for name in names),
        backward=backward,
        with_dlse=backward and run.with_dlse,
        seed=run.case.seed,
    )


def _dtype_of(run: CaseRun, name: str) -> str:
    return output_format(name, run.arithmetic, run.case.problem.dtype).name


def _field_lines(problem: AttentionProblem) -> list[str]:
    """Fields of the problem that are not at their default."""
    return [
        f"    {field.name}={getattr(problem, field.name)!r},"
        for field in fields(problem)
        if getattr(problem, field.name) != field.default
    ]


def _entries(arrays: Mapping[str, Array]) -> list[str]:
    return [entry for name, array in arrays.items() for entry in _entry(name, array)]


def _entry(name: str, array: Array) -> list[str]:
    """One entry of a dict of arrays, its text folded into short lines."""
    dtype = name_of(array.dtype)
    known = dtype if dtype in ("fp16", "bf16", "fp32") else str(array.dtype)
    lines = _folded(_tokens(array))
    start = f"    {name!r}: array({array.shape!r}, {known!r}, "
    if len(lines) == 1 and len(start) + len(lines[0]) < _LINE:
        return [f"{start}{lines[0]!r}),"]
    return [start.rstrip(), *(f"        {line + ' '!r}" for line in lines), "    ),"]


def _tokens(array: Array) -> list[str]:
    flat = np.asarray(array).ravel()
    numbers = flat.astype(np.float64) if flat.dtype.kind != "b" else flat.astype(np.int64)
    single = array.dtype.kind == "f" and array.dtype.itemsize == 4
    texts = [str(flat[place]) if single else repr(value) for place, value in enumerate(numbers.tolist())]
    tokens: list[str] = []
    start = 0
    for place in range(1, len(texts) + 1):
        if place == len(texts) or texts[place] != texts[start]:
            count = place - start
            tokens.append(f"{count}*{texts[start]}" if count > 1 else texts[start])
            start = place
    return tokens


def _folded(tokens: list[str]) -> list[str]:
    lines = [""]
    for token in tokens:
        if lines[-1] and len(lines[-1]) + len(token) > _LINE - 14:
            lines.append("")
        lines[-1] += (" " if lines[-1] else "") + token
    return lines


def _wrapped(text: str) -> str:
    return "\n".join(f"    {text[start : start + _LINE]!r}" for start in range(0, len(text), _LINE))
