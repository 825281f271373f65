"""The false-alarm campaign: honest candidates on the same cases and checks. Every failure is a fault of the harness."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from verify.candidates import load
from verify.case import Case
from verify.detection.bench import FalseAlarm
from verify.detection.cases import scoring_cases
from verify.dtypes import STORAGE_DTYPES
from verify.record import Record
from verify.runner import RunOptions, run_cases
from verify.verdict import Finding, Status

CANDIDATES = (
    "cuda_tiled",
    "cuda_textbook",
    "numpy_tiled",
    "numpy_tiled:rtz16",
    "numpy_tiled:eager",
    "numpy_tiled:fast_exp",
    "numpy_tiled:round_per_tile",
    "numpy_tiled:sequential",
    "torch_math",
    "torch_flash",
)
"""Kernels of this project on the CPU, the emulation in several arithmetics, and PyTorch's CPU backends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Honesty:
    """Result of the campaign. A case-check is one check that passed or failed on one case and candidate."""

    case_checks: int
    by_place: dict[tuple[str, str, str], int]
    """(candidate, dtype, check) -> case-checks."""
    alarms: tuple[FalseAlarm, ...]
    left_out: dict[str, str]
    """Candidate -> why it is not available here."""


def honesty_campaign(*, n_cases: int, grid: str, checks: tuple[str, ...], jobs: int, seed: int = 0) -> Honesty:
    """Run every available honest candidate on the first cases of each dtype.

    Parameters
    ----------
    n_cases
        Cases of each dtype, narrowed as for the mutants.
    grid
        Profile of the grid that they come from.
    checks
        Names of checks; empty = those of a plain run.
    """
    reasons = {name: load(name).unavailable() for name in CANDIDATES}
    names = tuple(name for name, reason in reasons.items() if reason is None)
    cases: list[Case] = []
    for dtype in STORAGE_DTYPES:
        cases += scoring_cases(dtype, profile=grid, seed=seed)[:n_cases]
    options = RunOptions(candidates=names, checks=checks, in_process=True, run_id="selftest")
    records = run_cases(cases, options, jobs=jobs, on_line=lambda line: None)
    judged = list(_judged(records))
    return Honesty(
        case_checks=len(judged),
        by_place=dict(Counter((r.candidate, _dtype(r), f.check) for r, f in judged)),
        alarms=tuple(_alarm(r, f) for r, f in judged if f.status.is_failure),
        left_out={name: reason for name, reason in reasons.items() if reason is not None},
    )


def _judged(records: Sequence[Record]) -> Iterator[tuple[Record, Finding]]:
    for record in records:
        for finding in record.verdict.findings:
            if finding.status not in (Status.UNSUPPORTED, Status.POWERLESS):
                yield record, finding


def _alarm(record: Record, finding: Finding) -> FalseAlarm:
    return FalseAlarm(
        candidate=record.candidate,
        case_id=record.case_id,
        check=finding.check,
        status=finding.status,
        reason="; ".join(finding.reasons)[:300],
    )


def _dtype(record: Record) -> str:
    return Case.parse(record.case_id).problem.dtype
