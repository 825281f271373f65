"""`repro`: one case on one candidate, shown in full, and saved as a bundle on request."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from verify.case import Case
from verify.checks import select_checks
from verify.checks.case_run import CaseFacts, CaseRun
from verify.commands.common import resolve_device, split_names
from verify.commands.run import choose_candidates
from verify.errors import UsageError
from verify.inputs import make_inputs
from verify.runner import Judge, RunOptions, undeclared
from verify.terminal import comparison_lines, failure_lines, repro_line
from verify.verdict import Status


def repro_command(
    *,
    case_id: str,
    candidate: str,
    save: Path | None,
    checks: str,
    device: str,
    timeout_s: float,
    in_process: bool,
    python: str | None,
) -> bool:
    """Judge one case, print everything, save the bundle; say whether it fails."""
    case = Case.parse(case_id)
    console = Console()
    options = RunOptions(
        candidates=choose_candidates((candidate,), console, python=python),
        checks=tuple(check.name for check in select_checks(split_names(checks))),
        timeout_s=timeout_s,
        in_process=in_process,
        python=python,
        run_id="repro",
        device=resolve_device(device),
    )
    judge = Judge(options)
    try:
        run = judge.case_run(CaseFacts(case=case, inputs=make_inputs(case)), candidate)
        record = judge.judge_run(run, candidate)
        if save is not None:
            save_bundle(run, save)
    finally:
        judge.close()
    failing = record.verdict.status.is_failure
    if failing:
        for line in failure_lines(record):
            console.print(line, soft_wrap=True, highlight=False, markup=False)
    else:
        console.print(
            f"{record.verdict.status}  {candidate}\n  replay  {repro_line(record)}", soft_wrap=True, highlight=False
        )
        for finding in record.verdict.findings:
            reason = f"  {finding.reasons[0]}" if finding.reasons else ""
            console.print(f"  {finding.check:<20}{finding.status}{reason}", soft_wrap=True, highlight=False)
            for comparison in finding.comparisons:
                for line in comparison_lines(comparison):
                    console.print(f"    {line}", soft_wrap=True, highlight=False, markup=False)
    if save is not None:
        console.print(f"bundle: {save}", soft_wrap=True, highlight=False)
    return failing


def save_bundle(run: CaseRun, path: Path) -> None:
    """Write case id, inputs, got, expected and bound as one .npz that NumPy alone opens (bf16 widened to fp32).

    What the run has computed is not computed again. A case that the candidate does not take has inputs alone.

    Raises
    ------
    UsageError
        If the file cannot be written; nothing half-written stays.
    """
    arrays: dict[str, Any] = {"case_id": np.array(run.case.case_id)}
    arrays |= {f"input_{name}": _plain(array) for name, array in run.facts.inputs.arrays.items()}
    if undeclared(run) is None:
        arrays |= _judged_arrays(run)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_bytes(buffer.getvalue())
        partial.replace(path)
    except OSError as error:
        raise UsageError(f"save={str(path)!r}: expected a writable file ({error.strerror})") from error


def _judged_arrays(run: CaseRun) -> dict[str, Any]:
    facts = run.judged_facts(run.first_outcome())
    backward = run.contract.capabilities.backward and run.outcome(backward=True).status is Status.PASS
    outcome = run.outcome(backward=backward)
    expected = facts.reference(backward=backward, with_dlse=run.with_dlse)
    bounds = facts.bounds(run.arithmetic, backward=backward, with_dlse=run.with_dlse)
    got = {} if outcome.reply is None else outcome.reply.outputs
    named = {f"input_{name}": _plain(array) for name, array in facts.inputs.arrays.items()}
    named |= {f"expected_{name}": array for name, array in expected.items()}
    named |= {f"bound_{name}": bound.total for name, bound in bounds.items()}
    return named | {f"got_{name}": _plain(array) for name, array in got.items()}


def _plain(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Contiguous array of a dtype that NumPy knows without extensions."""
    known = array.dtype.kind in "biuf"
    return np.ascontiguousarray(array if known else array.astype(np.float32))
