"""Other suites' rules and the derived bounds on the same answers: what each rejects, at what price."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verify.candidate import Call, Candidate
from verify.candidates import load
from verify.case import Case
from verify.checks.case_run import CaseFacts, CaseRun
from verify.checks.comparison import BACKWARD, FORWARD, LSE
from verify.detection.forked import Tell, run_forked
from verify.detection.rules import RULES, Question
from verify.inputs import make_inputs
from verify.verdict import Status
from verify.worker import InProcessSession

OURS = "derived bounds"
RULE_NAMES = (*(rule.name for rule in RULES), OURS)
BASELINE = "numpy_tiled:eager"
"""S, P and dP rounded to the storage dtype: what FlashAttention's tests get from PyTorch."""
_JUDGES = (FORWARD, LSE, BACKWARD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """One case on which answers meet, with the honest answer and who rejects it."""

    facts: CaseFacts
    baseline: Mapping[str, NDArray[Any]]
    honest: Mapping[str, NDArray[Any]]
    alarms: frozenset[str]
    """Rules that reject the honest candidate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Counts over (wrong candidate, case) instances whose outputs differ from the honest ones."""

    instances: int = 0
    rejected: Mapping[str, int] = field(default_factory=dict)
    """Rule -> instances that it rejects."""
    told_apart: Mapping[str, int] = field(default_factory=dict)
    """Rule -> instances that it rejects while it accepts the honest candidate on the same case."""
    killed: Mapping[str, int] = field(default_factory=dict)
    """Rule -> wrong candidates with at least one instance told apart."""
    targets: int = 0
    """Wrong candidates with at least one instance."""


def rings(honest: Candidate, cases: Sequence[Case]) -> Iterator[Ring]:
    """Cases that the honest candidate and the baseline take; dropout is left out, as their masks differ."""
    session, baseline = InProcessSession(honest), load(BASELINE)
    for case in cases:
        takers = (honest.contract.capabilities, baseline.contract.capabilities)
        if case.problem.dropout_p > 0 or any(taker.refusal(case.problem) is not None for taker in takers):
            continue
        facts = CaseFacts(case=case, inputs=make_inputs(case))
        call = Call(problem=case.problem, arrays=facts.inputs.arrays, backward=True, seed=case.seed)
        plain = dict(baseline.run(call).outputs)
        answer = _answer(honest, facts, session)
        if answer is not None:
            yield Ring(facts=facts, baseline=plain, honest=answer[0], alarms=_rejecting(answer, facts, plain))


def fight(build: Callable[[], Candidate], ring: Sequence[Ring], tell: Tell) -> list[tuple[str, frozenset[str]]]:
    """(case id, rules that reject) of each case on which the candidate's outputs are not the honest ones' bits."""
    candidate = build()
    session = InProcessSession(candidate)
    found = []
    for place in ring:
        tell(place.facts.case.case_id)
        answer = _answer(candidate, place.facts, session)
        if answer is None:
            continue
        same = all(_bits(answer[0].get(name)) == _bits(value) for name, value in place.honest.items())
        if not same:
            found.append((place.facts.case.case_id, _rejecting(answer, place.facts, place.baseline)))
    return found


def duel(builders: Sequence[Callable[[], Candidate]], ring: Sequence[Ring], *, jobs: int, timeout_s: float) -> Tally:
    """All wrong candidates on all cases; candidates that die are left out, as every rule sees a crash."""
    alarms = {place.facts.case.case_id: place.alarms for place in ring}
    rejected, apart, killed = (dict.fromkeys(RULE_NAMES, 0) for _ in range(3))
    instances = targets = 0
    tasks = [functools.partial(fight, build, ring) for build in builders]
    for ended in run_forked(tasks, jobs=jobs, timeout_s=timeout_s):
        found = ended.result or []
        targets += bool(found)
        instances += len(found)
        for name in RULE_NAMES:
            rejected[name] += sum(name in who for _, who in found)
            told = sum(name in who and name not in alarms[case_id] for case_id, who in found)
            apart[name] += told
            killed[name] += told > 0
    return Tally(instances=instances, rejected=rejected, told_apart=apart, killed=killed, targets=targets)


Answer = tuple[Mapping[str, NDArray[Any]], CaseRun]


def _answer(candidate: Candidate, facts: CaseFacts, session: InProcessSession) -> Answer | None:
    run = CaseRun(facts=facts, contract=candidate.contract, session=session)
    outcome = run.outcome(backward=True)
    if outcome.status is not Status.PASS or outcome.reply is None:
        return None
    return outcome.reply.outputs, run


def _rejecting(answer: Answer, facts: CaseFacts, baseline: Mapping[str, NDArray[Any]]) -> frozenset[str]:
    outputs, run = answer
    expected = facts.reference(backward=True, with_dlse=run.with_dlse)
    question = Question(got=outputs, expected=expected, baseline=baseline, dtype=facts.case.problem.dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        names = {rule.name for rule in RULES if not rule.accepts(question)}
    if any(check.run(run).status.is_failure for check in _JUDGES):
        names.add(OURS)
    return frozenset(names)


def _bits(array: NDArray[Any] | None) -> bytes:
    return b"" if array is None else np.ascontiguousarray(array).tobytes()
