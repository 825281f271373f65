"""Trials of the fuzzing itself: how soon campaigns find seeded faults from a cold start, and how small the cases get.

One campaign a mutant on the CPU backend: nothing compiled, no example database, its own folder.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from verify.case import Case
from verify.detection.campaign import MUTANT
from verify.detection.mutants import catalogue
from verify.fuzz.campaign import run_campaign
from verify.fuzz.database import CACHE_VARIABLE
from verify.fuzz.log import Line
from verify.fuzz.pinned_values import pin
from verify.fuzz.plan import Plan
from verify.fuzz.state import CampaignState, Fault

BUDGET_S = 60.0
"""Time of one campaign."""
MAX_SCORES, MAX_NONZERO = 64, 16
"""What counts as small: seqlen_q x seqlen_k, and values of q and k together that are not zero."""
TIMEOUT_S = 60.0
"""Limit of a call. The first one compiles, for many seconds on a loaded machine, which is no hang."""
HEAD_DIM = 32
"""Mutants are built with one small tile, for head dims up to this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What one campaign on one mutant gave."""

    mutant: str
    kind: str
    seconds: float | None
    """From the start of the campaign to the fault: processes, compilation, everything; None = not found."""
    examples: int
    """Cases that the lane which found it had judged; all cases where it was not found."""
    check: str = ""
    """Check, status, tensor and pattern of the fault."""
    case_id: str = ""
    """The minimised case."""
    candidate: str = ""
    """Mutant or the schedule of it that shows the fault."""
    minimise_seconds: float = 0.0
    minimise_calls: int = 0
    rows: int = 0
    keys: int = 0
    nonzero: int | None = None
    """Values of q and k together that are not zero; None where they cannot be written out."""

    @property
    def is_small(self) -> bool:
        """Whether a person can work the minimised case out by hand."""
        few = self.nonzero is not None and self.nonzero <= MAX_NONZERO
        return self.seconds is not None and self.rows * self.keys <= MAX_SCORES and few


def trial_mutants(count: int, pattern: str = "") -> tuple[str, ...]:
    """Names of the first mutants when those that count are taken in turn from all kinds, each kind by name.

    `pattern` leaves only those whose name contains it.
    """
    by_kind: dict[str, list[str]] = defaultdict(list)
    for name, mutant in sorted(catalogue().items()):
        if mutant.counted and pattern in name:
            by_kind[mutant.kind].append(name)
    turns = zip_longest(*(by_kind[kind] for kind in sorted(by_kind)))
    return tuple(name for name in chain.from_iterable(turns) if name is not None)[:count]


def fuzz_trials(
    names: Sequence[str],
    *,
    jobs: int = 2,
    seconds: float = BUDGET_S,
    seed: int = 0,
    on_trial: Callable[[Trial], None] = lambda trial: None,
) -> list[Trial]:
    """One campaign after another, each in `jobs` processes; `on_trial` hears of each as it ends."""
    done = []
    for name in names:
        done.append(_trial(name, jobs, seconds, seed))
        on_trial(done[-1])
    return done


def trials_summary(trials: Sequence[Trial]) -> dict[str, Any]:
    """The trials for JSON: totals, and one row each."""
    times = [trial.seconds for trial in trials if trial.seconds is not None]
    return {
        "tried": len(trials),
        "found": len(times),
        "median_seconds": round(statistics.median(times), 2) if times else None,
        "largest_seconds": round(max(times), 2) if times else None,
        "small": sum(trial.is_small for trial in trials),
        "limits": {"scores": MAX_SCORES, "nonzero": MAX_NONZERO},
        "trials": [{**asdict(trial), "small": trial.is_small} for trial in trials],
    }


def _trial(name: str, jobs: int, seconds: float, seed: int) -> Trial:
    kind = catalogue()[name].kind
    started, found_at = time.monotonic(), list[float]()

    def observe(state: CampaignState, lines: list[Line]) -> None:
        if state.faults and not found_at:
            found_at.append(time.monotonic() - started)

    with _cold() as folder:
        plan = Plan(
            candidate=MUTANT + name,
            out=folder,
            seed=seed,
            jobs=jobs,
            seconds=seconds,
            timeout_s=TIMEOUT_S,
            max_head_dim=HEAD_DIM,
        )
        state, interrupted = run_campaign(plan, observe)
    if interrupted and not state.faults:
        raise KeyboardInterrupt
    if not state.faults:
        return Trial(mutant=name, kind=kind, seconds=None, examples=state.examples)
    return _found(name, kind, round(found_at[0], 2), next(iter(state.faults.values())))


def _found(name: str, kind: str, seconds: float, fault: Fault) -> Trial:
    case, reduced = Case.parse(fault.case_id), fault.reduced
    pinned = pin(case)
    return Trial(
        mutant=name,
        kind=kind,
        seconds=seconds,
        examples=fault.found.examples,
        check=str(fault.key),
        case_id=fault.case_id,
        candidate=fault.candidate,
        minimise_seconds=round(reduced.seconds, 2) if reduced is not None else 0.0,
        minimise_calls=reduced.calls if reduced is not None else 0,
        rows=case.problem.seqlen_q,
        keys=case.problem.seqlen_k,
        nonzero=None if pinned is None else pinned.nonzero,
    )


@contextmanager
def _cold() -> Iterator[Path]:
    """A folder that holds the log, the compiled kernels and the examples of one campaign, and goes with it."""
    before = os.environ.get(CACHE_VARIABLE)
    with tempfile.TemporaryDirectory() as folder:
        os.environ[CACHE_VARIABLE] = folder
        try:
            yield Path(folder)
        finally:
            if before is None:
                del os.environ[CACHE_VARIABLE]
            else:
                os.environ[CACHE_VARIABLE] = before
