"""The conformance suite as a list of questions (candidate, case, check) and a judge that shares what a case shares."""

from __future__ import annotations

from dataclasses import dataclass

from verify.candidates import builtin_names, load
from verify.case import Case
from verify.checks import CHECKS, select_checks
from verify.checks.case_run import CaseFacts, CaseRun
from verify.grid import profile_cases
from verify.inputs import make_inputs
from verify.runner import Judge, RunOptions, undeclared
from verify.terminal import failure_lines
from verify.verdict import Finding
from verify.worker import candidate_for


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One check of one case on one candidate."""

    candidate: str
    case: Case
    check: str
    place: int
    """Place of the case in its profile: tells apart cases of equal label."""

    @property
    def label(self) -> str:
        """Test id: check, candidate, features and shape, fit for -k."""
        return f"{self.check}-{self.candidate}-{self.case.label}-{self.place}"


def questions(candidates: tuple[str, ...], profile: str, seed: int) -> tuple[Question, ...]:
    """Every declared case of the profile on every candidate (all available ones by default), check by check.

    Raises
    ------
    UsageError
        For an unknown candidate.
    """
    names = candidates or tuple(name for name in builtin_names() if load(name).unavailable() is None)
    cases = profile_cases(profile, seed=seed)
    refusals = {name: candidate_for(name).contract.capabilities.refusal for name in names}
    return tuple(
        Question(candidate=name, case=case, check=check.name, place=place)
        for name in names
        for place, case in enumerate(cases)
        if refusals[name](case.problem) is None
        for check in select_checks(())
    )


class ConformanceJudge:
    """Answers questions one by one; consecutive questions on one case share its calls, reference and bounds."""

    def __init__(self, *, timeout_s: float, in_process: bool) -> None:
        options = RunOptions(candidates=(), timeout_s=timeout_s, in_process=in_process, run_id="pytest")
        self._judge = Judge(options)
        self._latest: tuple[str, CaseRun] | None = None

    def finding(self, question: Question) -> Finding:
        """Run one check; UNSUPPORTED where the values of the case lie outside the contract (rows that see no key)."""
        run = self._run(question)
        return undeclared(run) or CHECKS[question.check].run(run)

    def explain(self, question: Question, finding: Finding) -> str:
        """The full text of a failing finding."""
        record = self._judge.record(self._run(question), question.candidate, (finding,))
        return "\n".join(failure_lines(record))

    def close(self) -> None:
        """End the candidates' processes."""
        self._judge.close()

    def _run(self, question: Question) -> CaseRun:
        latest = self._latest
        if latest is None or latest[0] != question.candidate or latest[1].case is not question.case:
            facts = CaseFacts(case=question.case, inputs=make_inputs(question.case))
            latest = (question.candidate, self._judge.case_run(facts, question.candidate))
            self._latest = latest
        return latest[1]
