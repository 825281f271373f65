"""Runs one check on one small case with an honest or a wrong candidate, in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.verify.candidates.asking import problem_of
from verify.candidate import Array, Call, Reply, Route
from verify.candidates import load
from verify.case import Case, Recipe
from verify.checks import CHECKS
from verify.checks.case_run import CaseFacts, CaseRun
from verify.inputs import make_inputs
from verify.verdict import Finding
from verify.worker import InProcessSession

Outputs = dict[str, Array]
Fault = Callable[[Callable[[Call], Outputs], Call], Outputs]
"""(the honest candidate, call) -> outputs."""
HONEST = ("numpy_tiled", "cuda_tiled")


class Faulty:
    """An honest candidate whose calls or outputs pass through a fault."""

    def __init__(self, fault: Fault, honest: str = "numpy_tiled") -> None:
        self.name = "faulty"
        self._honest = load(honest)
        self._fault = fault
        self.contract = self._honest.contract

    def unavailable(self) -> None:
        """Always available."""

    def run(self, call: Call) -> Reply:
        """The faulty reply."""
        outputs = self._fault(lambda asked: dict(self._honest.run(asked).outputs), call)
        return Reply(outputs=outputs, route=Route(backend=self.name))


def case_of(recipe: Recipe | None = None, seed: int = 3, **fields: Any) -> Case:
    """A small case; fields as in `problem_of`."""
    return Case(problem=problem_of(**fields), recipe=recipe or Recipe.of("normal"), seed=seed)


def run_of(candidate: Any, case: Case) -> CaseRun:
    """The case on a candidate, given by name or as an object."""
    asked = load(candidate) if isinstance(candidate, str) else candidate
    facts = CaseFacts(case=case, inputs=make_inputs(case))
    return CaseRun(facts=facts, contract=asked.contract, session=InProcessSession(asked))


def finding_of(check: str, candidate: Any, case: Case) -> Finding:
    """What one check says."""
    return CHECKS[check].run(run_of(candidate, case))
