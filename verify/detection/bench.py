"""Cases with their inputs, references, bounds and what the honest candidate gets on them: made once for all."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from verify.candidate import Candidate
from verify.case import Case, features
from verify.checks import Check
from verify.checks.case_run import CaseFacts, CaseRun
from verify.inputs import make_inputs
from verify.verdict import Finding, Status
from verify.worker import InProcessSession


@dataclass(slots=True, kw_only=True)
class Prepared:
    """One case, ready to be asked again."""

    case: Case
    facts: CaseFacts
    honest: dict[str, Status] = field(default_factory=dict)
    """Check -> status of the honest candidate."""
    honest_outputs: dict[str, object] = field(default_factory=dict)

    @property
    def features(self) -> frozenset[str]:
        return frozenset(features(self.case.problem))

    def counts(self, check: str) -> bool:
        """Whether a failure of that check says something about a mutant: the honest candidate passes it."""
        return self.honest.get(check) in (Status.PASS, Status.POWERLESS, Status.UNSUPPORTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class FalseAlarm:
    """A check that fails an honest candidate."""

    candidate: str
    case_id: str
    check: str
    status: Status
    reason: str


def prepare(candidate: Candidate, cases: Sequence[Case], checks: Sequence[Check]) -> Iterator[Prepared]:
    """Cases that the candidate takes, each with its honest statuses.

    Notes
    -----
    A POWERLESS finding of the honest candidate (the case could not fail) does not shield a mutant: what fails there all
    the same has failed.
    """
    session = InProcessSession(candidate)
    capabilities = candidate.contract.capabilities
    for case in cases:
        if capabilities.refusal(case.problem) is not None:
            continue
        facts = CaseFacts(case=case, inputs=make_inputs(case))
        prepared = Prepared(case=case, facts=facts)
        for finding in judge(candidate, facts, session, checks):
            prepared.honest[finding.check] = finding.status
        yield prepared
    session.close()


def judge(
    candidate: Candidate, facts: CaseFacts, session: InProcessSession, checks: Sequence[Check]
) -> Iterator[Finding]:
    """Findings of the checks, one after another, over shared calls."""
    run = CaseRun(facts=facts, contract=candidate.contract, session=session)
    for check in checks:
        yield check.run(run)


def now_s() -> float:
    """Seconds of a monotonic clock."""
    return time.perf_counter()
