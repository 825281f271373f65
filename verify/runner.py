"""The only orchestrator: cases x candidates x checks -> records. The reference and the verdict stay on this side."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from multiprocessing import get_context

from verify.candidate import Candidate, source_hash
from verify.candidates import load
from verify.case import Case, features
from verify.checks import select_checks
from verify.checks.case_run import CaseFacts, CaseRun
from verify.environment import environment
from verify.explain import likely_causes
from verify.inputs import make_inputs
from verify.known import known_reason
from verify.record import Environment, Record, Timing, decode_record, encode_record
from verify.verdict import Finding, Status, Verdict
from verify.worker import InProcessSession, ProcessSession, Session, candidate_for
from verify.worker.child import die_with

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What to run candidates with."""

    candidates: tuple[str, ...]
    checks: tuple[str, ...] = ()
    """Names of checks; empty = all."""
    timeout_s: float = 60.0
    """Wall-clock limit of one call of a candidate."""
    in_process: bool = False
    """Run candidates in this process, for debugging."""
    python: str | None = None
    """Interpreter of the candidates' process; None = this one."""
    run_id: str = ""
    device: str = "cpu"


@dataclass(slots=True)
class Judge:
    """Judges one case after another on every candidate, with one session a candidate."""

    options: RunOptions
    _candidates: dict[str, Candidate] = field(default_factory=dict)
    _sessions: dict[str, Session] = field(default_factory=dict)
    _environment: Environment | None = None

    def judge(self, case: Case) -> Iterator[Record]:
        """One record for each candidate, in the order of the options."""
        facts = CaseFacts(case=case, inputs=make_inputs(case))
        for name in self.options.candidates:
            yield self.judge_run(self.case_run(facts, name), name)

    def case_run(self, facts: CaseFacts, name: str) -> CaseRun:
        """One case on one candidate, ready for checks."""
        return CaseRun(facts=facts, contract=self._candidate(name).contract, session=self._session(name))

    def judge_run(self, run: CaseRun, name: str) -> Record:
        """Record of the selected checks; the run keeps what they computed."""
        started_at, started = datetime.now(UTC), time.perf_counter()
        facts = run.facts
        before = (facts.reference_ms, facts.bound_ms)
        refused = undeclared(run)
        if refused is None:
            findings = tuple(_timed(check.run, run) for check in select_checks(self.options.checks))
        else:
            findings = (refused,)
        timing = Timing(
            candidate_ms=run.candidate_ms,
            reference_ms=facts.reference_ms - before[0],
            bound_ms=facts.bound_ms - before[1],
            checks_ms=1e3 * (time.perf_counter() - started),
        )
        return self.record(run, name, findings, started_at=started_at, timing=timing)

    def close(self) -> None:
        """End the sessions."""
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()

    def record(
        self,
        run: CaseRun,
        name: str,
        findings: tuple[Finding, ...],
        *,
        started_at: datetime | None = None,
        timing: Timing | None = None,
    ) -> Record:
        """Record of some findings on one case and candidate."""
        case = run.case
        outcome = run.known_outcome()
        traced = (known_reason(name, case.problem, finding) for finding in findings)
        causes = (*dict.fromkeys(filter(None, traced)), *likely_causes(case.problem, findings))
        return Record(
            run_id=self.options.run_id,
            started_at=(started_at or datetime.now(UTC)).isoformat(timespec="milliseconds"),
            case_id=case.case_id,
            origin=case.origin,
            features=tuple(features(case.problem)),
            recipe=case.recipe.name,
            candidate=name,
            source_hash=source_hash(self._candidate(name)),
            environment=self._environment_of_run(),
            route=outcome.reply.route if outcome is not None and outcome.reply is not None else None,
            verdict=Verdict.of(findings, causes),
            timing=timing or Timing(),
        )

    def _candidate(self, name: str) -> Candidate:
        if name not in self._candidates:
            options = self.options
            self._candidates[name] = load(name) if options.in_process else candidate_for(name, python=options.python)
        return self._candidates[name]

    def _session(self, name: str) -> Session:
        if name not in self._sessions:
            self._sessions[name] = (
                InProcessSession(self._candidate(name))
                if self.options.in_process
                else ProcessSession(name, timeout_s=self.options.timeout_s, python=self.options.python)
            )
        return self._sessions[name]

    def _environment_of_run(self) -> Environment:
        if self._environment is None:
            self._environment = environment(self.options.device)
        return self._environment


def undeclared(run: CaseRun) -> Finding | None:
    """The finding of a case that lies outside what the candidate declares, or None when it is inside."""
    refusal = run.contract.capabilities.refusal(run.case.problem)
    if refusal is None and run.has_undeclared_row():
        refusal = "rows that see no key not declared"
    return None if refusal is None else Finding(check="capabilities", status=Status.UNSUPPORTED, reasons=(refusal,))


def run_cases(
    cases: Sequence[Case], options: RunOptions, *, jobs: int = 1, on_line: Callable[[bytes], None]
) -> list[Record]:
    """Judge every case on every candidate.

    Parameters
    ----------
    cases
        What to run; the result has their order.
    options
        Candidates, checks and how to run them.
    jobs
        Judging processes; each has its own session for each candidate.
    on_line
        Receives each encoded record as soon as its case is judged (a journal's append_line).

    Returns
    -------
    list of Record
        In the order of cases, then candidates, whatever the number of jobs.
    """
    lines = _run_here(cases, options) if jobs <= 1 else _run_in_processes(cases, options, jobs)
    by_place: dict[int, list[Record]] = {}
    for place, encoded in lines:
        for line in encoded:
            on_line(line)
        by_place[place] = [decode_record(line) for line in encoded]
    return [record for place in sorted(by_place) for record in by_place[place]]


def _run_here(cases: Sequence[Case], options: RunOptions) -> Iterator[tuple[int, list[bytes]]]:
    judge = Judge(options)
    try:
        for place, case in enumerate(cases):
            yield place, [encode_record(record) for record in judge.judge(case)]
    finally:
        judge.close()


def _run_in_processes(cases: Sequence[Case], options: RunOptions, jobs: int) -> Iterator[tuple[int, list[bytes]]]:
    for variable in THREAD_VARIABLES:
        os.environ.setdefault(variable, "1")
    context = get_context("spawn")
    with ProcessPoolExecutor(
        jobs, mp_context=context, initializer=_start_judge, initargs=(options, os.getpid())
    ) as pool:
        pending = {pool.submit(_judge_in_pool, case): place for place, case in enumerate(cases)}
        try:
            for future in as_completed(pending):
                yield pending[future], future.result()
        finally:
            pool.shutdown(cancel_futures=True)


_pool_judge: Judge | None = None


def _start_judge(options: RunOptions, parent: int) -> None:
    """Make this pool process's judge; its sessions end with the process, and the process with its parent."""
    global _pool_judge
    die_with(parent)
    _pool_judge = Judge(options)


def _judge_in_pool(case: Case) -> list[bytes]:
    assert _pool_judge is not None
    return [encode_record(record) for record in _pool_judge.judge(case)]


def _timed(check: Callable[[CaseRun], Finding], run: CaseRun) -> Finding:
    started = time.perf_counter()
    finding = check(run)
    return replace(finding, duration_ms=1e3 * (time.perf_counter() - started))
