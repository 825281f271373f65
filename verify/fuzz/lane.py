"""One lane of a campaign: draws cases from four sources in turn, judges them, makes the first failing one small.

Sources: pinned regressions and earlier faults, the explicit grid, a seeded uniform stream, Hypothesis. Hypothesis alone
repeats itself and misses rare couplings that a uniform stream hits; the grid holds traps that neither reaches soon.
Everything that is found goes to the log at once; the lane keeps nothing that a kill could lose.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import NoReturn

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis import strategies as st
from hypothesis.database import ExampleDatabase
from hypothesis.errors import Flaky

from verify.case import Case
from verify.contract import Capabilities
from verify.detection.order import order
from verify.fuzz.database import open_database
from verify.fuzz.faults import FaultKey, worst_ratio
from verify.fuzz.judging import CaseJudge, Judged
from verify.fuzz.log import CampaignLog, Found, Gone, Progress, Reduced, log_path
from verify.fuzz.minimise import EXPENSIVE, Minimised, minimise
from verify.fuzz.plan import Plan
from verify.fuzz.schedules import schedule_variants
from verify.fuzz.state import CampaignState, Fault, Position
from verify.grid import profile_cases
from verify.grid.coverage import properties
from verify.grid.pairwise import SMALL, Sampler
from verify.strategies import cases
from verify.worker import candidate_for

GRID_BATCH, UNIFORM_BATCH, ROUND_EXAMPLES = 8, 16, 80
"""Cases of one turn of each source."""
SAMPLER_TRIES = 100
"""Specs of the uniform stream that are drawn for one that the candidate takes."""
UNIFORM_SIZES = replace(SMALL, max_score_elements=10_000)
"""The lengths of the grid's small cases with fewer scores: many cases find more than large ones."""
SHRINK_CALLS, SHRINK_SECONDS = 80, 4.0
"""What Hypothesis may spend on the spec before this project's own search goes on from there."""
MAX_FAULTS = 20
"""Distinct faults after which a campaign ends: more of them are one fault in many guises."""
MAX_HANG_S = 5.0
"""Limit of one call while a hanging case is made smaller."""
PROGRESS_EVERY_S = 1.0


class StoppedError(BaseException):
    """The lane's budget is used up. Not an Exception, so that Hypothesis lets it through."""


class _ShrunkEnoughError(BaseException):
    """Hypothesis has spent its part of the search for a smaller case."""


class FaultError(Exception):
    """A case showed a new fault. Each fault has a subclass of its own, by which Hypothesis tells them apart."""


@cache
def _error_of(key: FaultKey) -> type[FaultError]:
    return type(f"FaultError_{key.check}_{key.status}_{key.tensor}", (FaultError,), {})


def _fail(key: FaultKey) -> NoReturn:
    # The one place that raises: Hypothesis takes the same error from another line for another fault.
    raise _error_of(key)


@dataclass(slots=True, kw_only=True)
class _Tally:
    """What has happened since the last progress line."""

    started: float = field(default_factory=time.monotonic)
    examples: int = 0
    worst_ratio: float = 0.0
    worst_case: str = ""
    new: list[int] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True, kw_only=True)
class _Shrinking:
    """The fault that Hypothesis is shrinking, and its smallest case so far."""

    key: FaultKey
    best: Judged
    calls: int = 0
    started: float = field(default_factory=time.monotonic)


class Lane:
    """Runs one lane until its budget ends or it is told to stop."""

    def __init__(self, plan: Plan, number: int, should_stop: Callable[[], bool] = lambda: False) -> None:
        self._plan, self._number, self._should_stop = plan, number, should_stop
        self._capabilities: Capabilities = plan.narrowed(
            candidate_for(plan.candidate, python=plan.python).contract.capabilities
        )
        self._variants = schedule_variants(plan.candidate)
        self._log = CampaignLog(log_path(plan.out, plan.candidate))
        self._state = CampaignState.empty(self._capabilities, plan.max_seqlen)
        self._state.apply(self._log.new_lines())
        self._position = self._state.positions.get((plan.seed, number), Position())
        self._judge = CaseJudge(
            checks=plan.checks, timeout_s=plan.timeout_s, in_process=plan.in_process, python=plan.python
        )
        self._started = time.monotonic()
        self._examples = 0
        self._tally = _Tally()
        self._shrinking: _Shrinking | None = None
        self._database: ExampleDatabase | None = None

    def run(self) -> None:
        """Sources in turn until the budget ends, the first fault is made small, or there are too many faults."""
        try:
            self._earlier_faults()
            self._regressions()
            while not self._finished():
                self._grid()
                self._uniform()
                self._hypothesis()
        except StoppedError:
            pass
        finally:
            self._write_progress()
            self._judge.close()
            self._log.close()

    def _finished(self) -> bool:
        self._state.apply(self._log.new_lines())
        faults = self._state.faults.values()
        # A known deviation is written down once and ends nothing.
        return len(faults) >= MAX_FAULTS or (not self._plan.keep_going and any(not fault.key.known for fault in faults))

    def _stop_if_spent(self) -> None:
        quota = self._plan.examples_of(self._number)
        late = self._plan.seconds is not None and time.monotonic() - self._started >= self._plan.seconds
        if late or (quota is not None and self._examples >= quota) or self._should_stop():
            raise StoppedError

    # ---- sources

    def _earlier_faults(self) -> None:
        """Faults of the log: gone, or made smaller where the last search was cut short."""
        for place, fault in enumerate(list(self._state.faults.values())):
            if place % self._plan.jobs != self._number:
                continue
            case = Case.parse(fault.case_id, origin="regression")
            judged = self._examine(case, fault.candidate, only=fault.key.check)
            if not judged.failing:
                self._log.append(Gone(fault=str(fault.key), case_id=fault.case_id))
            elif fault.reduced is None or not fault.reduced.complete:
                self._reduce(fault, judged)

    def _regressions(self) -> None:
        mine = self._plan.regressions[self._number :: self._plan.jobs]
        for case, check in mine:
            # The check that failed may be one that a campaign runs now and then only.
            for only in (None, check):
                if self._finished():
                    return
                if self._capabilities.refusal(case.problem) is None:
                    self._try(replace(case, origin="regression"), self._plan.candidate, "regression", only=only)

    def _grid(self) -> None:
        cases_of_lane = _grid_cases(self._plan.seed)[self._number :: self._plan.jobs]
        variant, done = self._variant(2 * self._position.rounds), 0
        while self._position.grid < len(cases_of_lane) and done < GRID_BATCH and not self._finished():
            case = cases_of_lane[self._position.grid]
            self._position = replace(self._position, grid=self._position.grid + 1)
            if self._capabilities.refusal(case.problem) is None:
                done += 1
                self._try(case, variant, "grid")

    def _uniform(self) -> None:
        variant = self._variant(2 * self._position.rounds + 1)
        for _ in range(UNIFORM_BATCH):
            if self._finished():
                return
            number = self._position.uniform
            self._position = replace(self._position, uniform=number + 1)
            case = uniform_case(self._capabilities, self._stream_seed(number))
            if case is not None:
                self._try(case, variant, "uniform")

    def _hypothesis(self) -> None:
        if self._finished():
            return
        number = self._position.rounds
        self._position = replace(self._position, rounds=number + 1)
        self._shrinking = None
        try:
            self._round(number)()
        except (FaultError, _ShrunkEnoughError, Flaky):  # a candidate that keeps state fails now and passes then
            self._report_shrunk()
        finally:
            self._shrinking = None

    def _report_shrunk(self) -> None:
        shrinking, self._shrinking = self._shrinking, None
        assert shrinking is not None, "a round fails for a fault only"
        self._report(shrinking.best, shrinking.key)

    def _round(self, number: int) -> Callable[[], None]:
        """One Hypothesis test, seeded, over cases and schedules."""
        if self._database is None:
            scope = f"{self._plan.candidate} {self._plan.max_seqlen} {self._plan.max_head_dim}"
            self._database = open_database(self._plan.database, scope)
        drawn = cases(capabilities=self._capabilities, **self._plan.narrowing)

        # Settings outermost: the seed's decorator takes the database away from those below it.
        @settings(
            max_examples=ROUND_EXAMPLES,
            database=self._database,
            deadline=None,
            derandomize=False,
            phases=(Phase.reuse, Phase.generate, Phase.target, Phase.shrink),
            suppress_health_check=list(HealthCheck),
            verbosity=Verbosity.quiet,
            report_multiple_bugs=False,
            print_blob=False,
        )
        @hypothesis.seed(self._stream_seed(number))
        @hypothesis.given(candidate=st.sampled_from(self._variants), case=drawn)
        def campaign(candidate: str, case: Case) -> None:
            self._draw(case, candidate)

        return campaign

    def _draw(self, case: Case, candidate: str) -> None:
        """One drawn case: judged, labelled, steered; raises for a new fault."""
        for axis, value in properties(case):
            hypothesis.event(axis, value)
        # While it shrinks, every case must be asked what the first one failed.
        judged = self._examine(case, candidate, only=self._shrinking.key.check if self._shrinking else None)
        keys = judged.faults
        if self._shrinking is None:
            self._steer(judged)
            new = self._new_fault(keys)
            if new is None:
                return
            self._write_found(judged, new, "hypothesis")
            self._shrinking = _Shrinking(key=new, best=judged)
            if new.status in EXPENSIVE:
                raise _ShrunkEnoughError
            _fail(new)
        self._shrink_step(self._shrinking, judged, keys)

    def _shrink_step(self, shrinking: _Shrinking, judged: Judged, keys: tuple[FaultKey, ...]) -> None:
        shrinking.calls += 1
        same = any(key.same_kind(shrinking.key) for key in keys)
        if same and _size(judged.case) < _size(shrinking.best.case):
            shrinking.best = judged
        if shrinking.calls >= SHRINK_CALLS or time.monotonic() - shrinking.started >= SHRINK_SECONDS:
            raise _ShrunkEnoughError
        if same:
            _fail(shrinking.key)

    def _steer(self, judged: Judged) -> None:
        """Let Hypothesis climb toward large error/bound, one label a tensor."""
        largest: dict[str, float] = {}
        for finding in judged.findings:
            for comparison in finding.comparisons:
                if 0 < comparison.max_bound_ratio < math.inf:
                    ratio = max(comparison.max_bound_ratio, largest.get(comparison.tensor, 0.0))
                    largest[comparison.tensor] = ratio
        for tensor, ratio in largest.items():
            hypothesis.target(math.log10(ratio), label=tensor)

    # ---- judging

    def _try(self, case: Case, candidate: str, source: str, *, only: str | None = None) -> None:
        judged = self._examine(case, candidate, only=only)
        new = self._new_fault(judged.faults)
        if new is not None:
            self._write_found(judged, new, source)
            self._report(judged, new)

    def _examine(self, case: Case, candidate: str, *, only: str | None = None) -> Judged:
        """Judge a case, by one check if it is named, and count it."""
        self._stop_if_spent()
        try:
            judged = self._judge.judge(case, candidate, only=only)
        except Exception as error:
            error.add_note(f"while judging {case.case_id} on {candidate}")
            raise
        self._examples += 1
        tally = self._tally
        tally.examples += 1
        tally.new += self._state.coverage.add(case)
        ratio = worst_ratio(judged.findings)
        if not judged.failing and ratio > tally.worst_ratio:
            tally.worst_ratio, tally.worst_case = ratio, case.case_id
        if time.monotonic() - tally.started >= PROGRESS_EVERY_S:
            self._write_progress()
        return judged

    def _new_fault(self, keys: tuple[FaultKey, ...]) -> FaultKey | None:
        """The fault that names a failing case, when it is not known yet; a known one is counted."""
        if not keys:
            return None
        if str(keys[0]) in self._state.faults:
            self._tally.counts[str(keys[0])] += 1
            return None
        return keys[0]

    def _report(self, judged: Judged, key: FaultKey) -> None:
        self._state.apply(self._log.new_lines())
        self._reduce(self._state.faults[str(key)], judged)

    def _reduce(self, fault: Fault, judged: Judged) -> Minimised:
        """Make the case small and write it down, also when the search is cut short."""
        judge, limit = self._judge, self._plan.timeout_s
        if fault.key.status in EXPENSIVE and limit > MAX_HANG_S:
            judge = self._judge.with_timeout(MAX_HANG_S)
        small = minimise(judged, fault.key, judge, budget=self._plan.minimise_budget, should_stop=self._should_stop)
        if judge is not self._judge:
            judge.close()
        self._log.append(
            Reduced(
                fault=str(fault.key),
                case_id=small.case.case_id,
                candidate=small.judged.candidate,
                calls=small.calls,
                seconds=small.seconds,
                complete=small.complete,
            )
        )
        return small

    # ---- log

    def _write_found(self, judged: Judged, key: FaultKey, source: str) -> None:
        self._log.append(
            Found(
                check=key.check,
                status=key.status,
                tensor=key.tensor,
                pattern=key.pattern,
                known=key.known,
                case_id=judged.case.case_id,
                candidate=judged.candidate,
                source=source,
                examples=self._examples,
                seconds=time.monotonic() - self._started,
            )
        )

    def _write_progress(self) -> None:
        tally, self._tally = self._tally, _Tally()
        self._log.append(
            Progress(
                lane=self._number,
                seed=self._plan.seed,
                examples=tally.examples,
                seconds=time.monotonic() - tally.started,
                grid=self._position.grid,
                uniform=self._position.uniform,
                rounds=self._position.rounds,
                worst_ratio=tally.worst_ratio,
                worst_case=tally.worst_case,
                new=tally.new,
                counts=dict(tally.counts),
            )
        )

    def _variant(self, turn: int) -> str:
        """One schedule a turn of a source, the plain one first: each has a process of its own, which takes its time."""
        return self._variants[turn % len(self._variants)]

    def _stream_seed(self, number: int) -> int:
        """Distinct for every seed, lane and number of a stream."""
        return (self._plan.seed * 1_000_003 + number) * self._plan.jobs + self._number


def uniform_case(capabilities: Capabilities, seed: int) -> Case | None:
    """Case number `seed` of the uniform stream that the candidate takes; None when it takes none of those drawn."""
    sampler = Sampler(seed, UNIFORM_SIZES)
    for _ in range(SAMPLER_TRIES):
        problem, recipe = sampler.spec()
        if capabilities.refusal(problem) is None:
            return Case(problem=problem, recipe=recipe, seed=seed, origin="grid")
    return None


@cache
def _grid_cases(seed: int) -> tuple[Case, ...]:
    """The cases that killed most seeded faults, which one compilation serves, then the explicit grid."""
    early = (Case.parse(text, origin="grid") for text in order())
    return (*early, *profile_cases("quick", seed=seed % 2**40))


def _size(case: Case) -> tuple[int, int]:
    p = case.problem
    return p.batch * p.nheads * p.seqlen_q * p.seqlen_k, len(case.case_id)
