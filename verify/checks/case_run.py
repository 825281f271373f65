"""One case on one candidate, as the checks see it: calls, reference and bounds are computed once and shared."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verify.candidate import Call
from verify.case import Case
from verify.contract import Arithmetic, Contract
from verify.inputs import Inputs
from verify.oracle import reference_outputs
from verify.tolerance import Bound, derive_bounds
from verify.verdict import Status
from verify.worker import Outcome, Session

Array = NDArray[Any]
Float64 = NDArray[np.float64]
GRADIENTS = ("dq", "dk", "dv", "dbias", "dsink")


@dataclass(slots=True, kw_only=True)
class CaseFacts:
    """Inputs, reference and bounds of one case, shared by all candidates."""

    case: Case
    inputs: Inputs
    reference_ms: float = 0.0
    bound_ms: float = 0.0
    _references: dict[tuple[bool, bool], Mapping[str, Float64]] = field(default_factory=dict)
    _bounds: dict[tuple[Arithmetic, bool, bool], Mapping[str, Bound]] = field(default_factory=dict)

    def reference(self, *, backward: bool, with_dlse: bool) -> Mapping[str, Float64]:
        """fp64 outputs in logical shape; the forward alone where the gradients are not asked for."""
        key = (backward, with_dlse and backward)
        if key not in self._references:
            started = time.perf_counter()
            problem, arrays = self.case.problem, self.inputs.arrays
            self._references[key] = reference_outputs(problem, arrays, backward=key[0], with_dlse=key[1]).outputs
            self.reference_ms += 1e3 * (time.perf_counter() - started)
        return self._references[key]

    def has_blind_row(self) -> bool:
        """Whether some query row sees no key and has no sink."""
        return bool(np.isneginf(self.reference(backward=False, with_dlse=False)["lse"]).any())

    def bounds(self, arithmetic: Arithmetic, *, backward: bool, with_dlse: bool) -> Mapping[str, Bound]:
        """Per-element bounds under the declared arithmetic."""
        key = (arithmetic, backward, with_dlse and backward)
        if key not in self._bounds:
            reference = self.reference(backward=key[1], with_dlse=key[2])
            started = time.perf_counter()
            self._bounds[key] = derive_bounds(
                self.case.problem, self.inputs.arrays, reference, arithmetic, backward=key[1], with_dlse=key[2]
            )
            self.bound_ms += 1e3 * (time.perf_counter() - started)
        return self._bounds[key]


@dataclass(slots=True, kw_only=True)
class CaseRun:
    """One case on one candidate."""

    facts: CaseFacts
    contract: Contract
    session: Session
    probe_order: bool = False
    """Every call asks for evidence of the order of its work."""
    prefill: str = "nan"
    """What the output buffers of every call hold beforehand, where the harness makes them."""
    splits: int = 0
    """Parts into which every call asks the range of keys to be split; 0 = as the candidate likes."""
    candidate_ms: float = 0.0
    _outcomes: dict[bool, Outcome] = field(default_factory=dict)
    _own_facts: CaseFacts | None = None

    @property
    def case(self) -> Case:
        return self.facts.case

    @property
    def arithmetic(self) -> Arithmetic:
        return self.contract.arithmetic[self.case.problem.dtype]

    @property
    def with_dlse(self) -> bool:
        """Whether the backward is asked with a gradient of lse: every second seed, where the candidate takes one."""
        return self.contract.capabilities.takes_dlse and self.case.seed % 2 == 1

    def has_undeclared_row(self) -> bool:
        """Whether some query row sees no key and the candidate declares none of that kind."""
        return not self.contract.capabilities.fully_masked_rows and self.facts.has_blind_row()

    def outcome(self, *, backward: bool) -> Outcome:
        """The candidate's answer. A failed backward is followed by a forward alone, so that the forward is judged."""
        if backward not in self._outcomes:
            self._outcomes[backward] = self._call(backward)
            ran = self._outcomes[backward].status is Status.PASS
            if backward and ran:
                self._outcomes.setdefault(False, self._outcomes[True])
        return self._outcomes[backward]

    def first_outcome(self) -> Outcome:
        """The outcome that holds the forward's results."""
        if self.contract.capabilities.backward:
            self.outcome(backward=True)
        return self.outcome(backward=False)

    def known_outcome(self) -> Outcome | None:
        """An outcome that the checks already asked for, if any."""
        return self._outcomes.get(False) or self._outcomes.get(True)

    def judged_facts(self, outcome: Outcome) -> CaseFacts:
        """Facts to judge an outcome by: those of the candidate's own dropout mask where it drew one."""
        own = self.case.problem.dropout_p > 0 and self.contract.capabilities.dropout_mask == "own"
        if not own or outcome.reply is None or "dropout_keep" not in outcome.reply.outputs:
            return self.facts
        if self._own_facts is None:
            keep = np.asarray(outcome.reply.outputs["dropout_keep"], bool)
            arrays = {**self.facts.inputs.arrays, "dropout_keep": keep}
            self._own_facts = CaseFacts(case=self.case, inputs=replace(self.facts.inputs, arrays=arrays))
        return self._own_facts

    def expected_outputs(self, *, backward: bool) -> tuple[str, ...]:
        """Names of the outputs that the candidate owes, forward or gradients."""
        problem, declared = self.case.problem, self.contract.capabilities.outputs
        absent = set()
        if problem.bias != "additive":
            absent.add("dbias")
        if not problem.sink:
            absent.add("dsink")
        names = GRADIENTS if backward else ("out", "lse")
        return tuple(name for name in names if name in declared and name not in absent)

    def ask(self, inputs: Inputs, *, backward: bool, with_dlse: bool | None = None) -> Outcome:
        """One more call of the candidate, with other inputs of the same or of another problem.

        `with_dlse` None = as in the case's own backward.
        """
        dlse = self.with_dlse if with_dlse is None else with_dlse
        call = Call(
            problem=inputs.problem,
            arrays=inputs.arrays,
            backward=backward,
            with_dlse=backward and dlse,
            seed=self.case.seed,
            probe_order=self.probe_order,
            prefill=self.prefill,
            splits=self.splits,
        )
        outcome = self.session.call(call)
        self.candidate_ms += outcome.duration_ms
        return outcome

    def _call(self, backward: bool) -> Outcome:
        return self.ask(self.facts.inputs, backward=backward)
