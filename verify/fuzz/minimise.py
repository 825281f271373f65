"""Makes a failing case small: features and shapes first, then the recipe, then parts and single values.

A step is kept when the same check still fails with the same status on the same tensor. Bounded in calls and seconds,
because each step asks the candidate again; a candidate that hangs or crashes costs a process a step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from math import prod

from verify.case import Case
from verify.fuzz.faults import FaultKey
from verify.fuzz.judging import CaseJudge, Judged
from verify.fuzz.pinned_values import Pinned, pins, simpler_values
from verify.fuzz.schedules import simpler_schedules
from verify.fuzz.simpler import SIMPLE_RECIPES, simpler_problems
from verify.problem import AttentionProblem
from verify.recipes.pinned import NAME
from verify.verdict import Status

EXPENSIVE = (Status.CRASH, Status.HANG, Status.OUT_OF_MEMORY)
"""Statuses whose every repetition costs a process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a minimisation may cost."""

    calls: int = 1500
    seconds: float = 20.0

    @staticmethod
    def of(status: Status) -> Budget:
        """Smaller in calls where a call costs a process."""
        return Budget(calls=60, seconds=60.0) if status in EXPENSIVE else Budget()


@dataclass(frozen=True, slots=True, kw_only=True)
class Minimised:
    """The smallest failing case that was found."""

    judged: Judged
    """The case, the candidate (or variant) and the finding of the one check."""
    key: FaultKey
    calls: int
    seconds: float
    complete: bool
    """No further step keeps the fault; False = the budget ended first."""

    @property
    def case(self) -> Case:
        return self.judged.case


class _SpentError(Exception):
    """The budget of a minimisation is used up."""


@dataclass(slots=True, kw_only=True)
class _Search:
    """Greedy search: the best case so far and what was asked already."""

    judge: CaseJudge
    key: FaultKey
    best: Judged
    budget: Budget
    should_stop: Callable[[], bool]
    calls: int = 0
    started: float = field(default_factory=time.monotonic)
    asked: set[tuple[str, str]] = field(default_factory=set)

    def accepts(self, case: Case, candidate: str | None = None) -> bool:
        """Whether the case still shows the fault; then it is the best one."""
        name = candidate or self.best.candidate
        if (case.case_id, name) in self.asked:
            return False
        if self.calls >= self.budget.calls or self.seconds >= self.budget.seconds or self.should_stop():
            raise _SpentError
        self.asked.add((case.case_id, name))
        self.calls += 1
        judged = self.judge.judge(case, name, only=self.key.check)
        if not any(key.same_kind(self.key) for key in judged.faults):
            return False
        self.best = judged
        return True

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started


def minimise(
    judged: Judged,
    key: FaultKey,
    judge: CaseJudge,
    *,
    budget: Budget | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Minimised:
    """Smallest case that still shows the fault.

    Parameters
    ----------
    judged
        A failing case.
    key
        The fault among its findings that must stay.
    judge
        Judges the smaller cases.
    budget
        Limits; None = those of the status.
    should_stop
        Asked before each call; True ends the search with the best case so far.
    """
    search = _Search(judge=judge, key=key, best=judged, budget=budget or Budget.of(key.status), should_stop=should_stop)
    complete = True
    try:
        _reduce_schedule(search)
        _reduce_problem(search)
        _reduce_values(search)
    except _SpentError:
        complete = False
    return Minimised(judged=search.best, key=key, calls=search.calls, seconds=search.seconds, complete=complete)


def _reduce_schedule(search: _Search) -> None:
    for candidate in simpler_schedules(search.best.candidate):
        if search.accepts(search.best.case, candidate):
            return


def _reduce_problem(search: _Search) -> None:
    """Problems one step simpler, then plain values, until neither keeps the fault."""
    # Values that are written out fit their own shape alone; _reduce_values cuts both.
    while search.best.case.recipe.name != NAME:
        before = search.best.case
        _first_accepted(search, (_at(before, problem) for problem in simpler_problems(before.problem)))
        if search.best.case is before:
            _first_accepted(search, _plainer_recipes(before))
        if search.best.case is before:
            return


def _plainer_recipes(case: Case) -> Iterable[Case]:
    for recipe in SIMPLE_RECIPES:
        if case.recipe == recipe:
            return
        yield replace(case, recipe=recipe)


def _reduce_values(search: _Search) -> None:
    """Values written out and made simpler; afterwards the problem may get simpler again."""
    case = search.best.case
    pinned = next((pinned for pinned in pins(case) if pinned.case == case or search.accepts(pinned.case)), None)
    if pinned is None:
        return
    while True:
        size = size_of(pinned)
        pinned = _reduce_pinned(search, pinned)
        for problem in simpler_problems(pinned.case.problem):
            # Shapes shrink with their values in _reduce_pinned; here only features go.
            if shape_of(problem) == shape_of(pinned.case.problem):
                other = replace(pinned.case, problem=problem)
                if search.accepts(other):
                    pinned = Pinned(case=other, values=pinned.values)
        if size_of(pinned) == size:
            return


def _reduce_pinned(search: _Search, pinned: Pinned) -> Pinned:
    """Steps that keep the fault are applied as they come; a pass that changes nothing ends the search."""
    while True:
        for smaller in simpler_values(pinned):
            if search.accepts(smaller.case):
                pinned = smaller
                break
        else:
            return pinned


def _first_accepted(search: _Search, cases: Iterable[Case]) -> bool:
    return any(search.accepts(case) for case in cases)


def _at(case: Case, problem: AttentionProblem) -> Case:
    return replace(case, problem=problem)


def shape_of(problem: AttentionProblem) -> tuple[int, ...]:
    """Extents of the operands."""
    p = problem
    return p.batch, p.seqlen_q, p.seqlen_k, p.nheads, p.nheads_kv, p.head_dim, p.head_dim_v


def size_of(pinned: Pinned) -> tuple[int, int, str]:
    """What the search makes smaller: scores, non-zero values, the case id."""
    return prod(shape_of(pinned.case.problem)), pinned.nonzero, pinned.case.case_id
