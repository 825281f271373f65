"""One case on one candidate for a campaign: which checks run, on which variant, with sessions that are kept."""

from __future__ import annotations

import zlib
from bisect import bisect
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import accumulate

from verify.case import Case
from verify.checks import CHECKS, ORDER, Check, select_checks
from verify.checks.case_run import CaseFacts, CaseRun, Float64
from verify.contract import Arithmetic
from verify.errors import require
from verify.fuzz.faults import FaultKey, fault_keys
from verify.inputs import make_inputs
from verify.known import known_reason
from verify.record import Record
from verify.runner import Judge, RunOptions, undeclared
from verify.tolerance import Bound
from verify.verdict import Finding, Verdict
from verify.worker import candidate_for

EVERY_CASE = ("contract", "forward", "lse", "backward", "aggregate")
"""Checks that share the calls of a case, so that they cost hardly more than one."""
COSTLY_EVERY = 4
"""One case in so many also runs one of the checks that call the candidate again."""
TICKETS = 2**20
"""Steps in which the choice among them is made."""
MAX_SESSIONS = 6
"""Variants of a candidate whose processes are kept: all schedules of a CUDA kernel on the CPU backend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A case, the candidate (or variant) that it ran on and what the checks found."""

    case: Case
    candidate: str
    findings: tuple[Finding, ...]

    @property
    def failing(self) -> bool:
        """Any check failed."""
        return any(finding.status.is_failure for finding in self.findings)

    @property
    def faults(self) -> tuple[FaultKey, ...]:
        """Its faults; the first one names it."""
        problem = self.case.problem
        return fault_keys(self.findings, lambda finding: known_reason(self.candidate, problem, finding) is not None)


@dataclass(slots=True, kw_only=True)
class _WholeFacts(CaseFacts):
    """Facts of a candidate that has a backward: one reference and one set of bounds serve its forward too."""

    whole: tuple[bool, bool] | None = None
    """(backward, with_dlse) of the results that hold everything; None = as asked."""

    def reference(self, *, backward: bool, with_dlse: bool) -> Mapping[str, Float64]:
        if not backward and self.whole is not None:
            backward, with_dlse = self.whole
        return CaseFacts.reference(self, backward=backward, with_dlse=with_dlse)

    def bounds(self, arithmetic: Arithmetic, *, backward: bool, with_dlse: bool) -> Mapping[str, Bound]:
        if not backward and self.whole is not None:
            backward, with_dlse = self.whole
        return CaseFacts.bounds(self, arithmetic, backward=backward, with_dlse=with_dlse)


@dataclass(slots=True)
class CaseJudge:
    """Judges cases one after another; keeps a session for each of the last few variants."""

    checks: tuple[str, ...] = ()
    """Checks that run on every case; empty = EVERY_CASE always, one of the others now and then."""
    timeout_s: float = 20.0
    in_process: bool = False
    python: str | None = None
    _judges: OrderedDict[str, Judge] = field(default_factory=OrderedDict)

    def judge(self, case: Case, candidate: str, *, only: str | None = None) -> Judged:
        """Findings of the selected checks, or of the one named by `only`."""
        checks = select_checks((only,)) if only else self._checks_of(case)
        run = self.case_run(case, candidate)
        refused = undeclared(run)
        findings = tuple(check.run(run) for check in checks) if refused is None else (refused,)
        return Judged(case=case, candidate=candidate, findings=findings)

    def record(self, judged: Judged) -> Record:
        """Record of a judged case, for reports and the terminal."""
        run = self.case_run(judged.case, judged.candidate)
        return self._judge(judged.candidate).record(run, judged.candidate, judged.findings)

    def case_run(self, case: Case, candidate: str) -> CaseRun:
        """The case on the candidate, nothing asked yet."""
        facts = _WholeFacts(case=case, inputs=make_inputs(case))
        run = self._judge(candidate).case_run(facts, candidate)
        if run.contract.capabilities.backward:
            facts.whole = (True, run.with_dlse)
        return run

    def with_timeout(self, timeout_s: float) -> CaseJudge:
        """The same judge with another limit and sessions of its own."""
        return replace(self, timeout_s=timeout_s, _judges=OrderedDict())

    def close(self) -> None:
        """End all sessions."""
        for judge in self._judges.values():
            judge.close()
        self._judges.clear()

    def _judge(self, candidate: str) -> Judge:
        if candidate not in self._judges:
            options = RunOptions(
                candidates=(candidate,),
                timeout_s=self.timeout_s,
                in_process=self.in_process,
                python=self.python,
                run_id="fuzz",
            )
            self._judges[candidate] = Judge(options)
            if len(self._judges) > MAX_SESSIONS:
                self._judges.popitem(last=False)[1].close()
        self._judges.move_to_end(candidate)
        return self._judges[candidate]

    def _checks_of(self, case: Case) -> tuple[Check, ...]:
        if self.checks:
            return select_checks(self.checks)
        # Chosen by the case id, so that the same case is judged by the same checks on every machine.
        ticket = zlib.crc32(case.case_id.encode())
        if ticket % COSTLY_EVERY:
            return select_checks(EVERY_CASE)
        return select_checks((*EVERY_CASE, _costly_check(ticket // COSTLY_EVERY)))


def _costly_check(ticket: int) -> str:
    """One of the checks that call the candidate again, each as often as its calls are few: equal time for all."""
    names, shares = _costly_checks()
    return names[bisect(shares, ticket % TICKETS / TICKETS * shares[-1])]


@cache
def _costly_checks() -> tuple[tuple[str, ...], tuple[float, ...]]:
    """Names and running sums of their shares. One that cannot fail finds no fault; those that wait cost too much."""
    costly = [
        check
        for check in CHECKS.values()
        if check.name not in EVERY_CASE and check not in ORDER and any(status.is_failure for status in check.raises)
    ]
    # The call that they share with the other checks counts as one.
    return tuple(check.name for check in costly), tuple(accumulate(1.0 / max(2, 1 + check.calls) for check in costly))


def check_case(
    case: Case | str, candidate: str, *, checks: tuple[str, ...] = (), in_process: bool = True, timeout_s: float = 60.0
) -> Verdict:
    """Verdict of one case on one candidate, for tests: assert on its `status`.

    Parameters
    ----------
    case
        A Case or a case id.
    candidate
        Name that verify.candidates.load knows.
    checks
        Names of checks; empty = all of them.
    in_process
        Run the candidate in this process; False protects the caller from crashes and hangs and costs a process start.
    timeout_s
        Wall-clock limit of one call in a process of its own.

    Raises
    ------
    UsageError
        Unknown candidate, check or case id.
    """
    known = Case.parse(case) if isinstance(case, str) else case
    reason = candidate_for(candidate).unavailable()
    require(reason is None, "candidate", candidate, f"an available candidate ({reason})")
    names = tuple(check.name for check in select_checks(checks))
    judge = CaseJudge(checks=names, timeout_s=timeout_s, in_process=in_process)
    try:
        return judge.record(judge.judge(known, candidate)).verdict
    finally:
        judge.close()
