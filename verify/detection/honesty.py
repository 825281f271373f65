"""The false-alarm campaign: honest candidates on case after case. Every failure is a fault of the harness, or known.

Each candidate runs in a process of its own, so that neither a crash nor a spoilt heap reaches the judging processes.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from multiprocessing import active_children, get_context

from verify.candidates import load
from verify.detection.bench import FalseAlarm
from verify.detection.questions import Question, questions
from verify.errors import require
from verify.known import known_reason
from verify.record import Record
from verify.runner import THREAD_VARIABLES, Judge, RunOptions
from verify.verdict import Finding, Status
from verify.worker.child import die_with

CANDIDATES = (
    "cuda_tiled",
    "cuda_textbook",
    "numpy_tiled",
    "numpy_tiled:rtz16",
    "numpy_tiled:eager",
    "numpy_tiled:fast_exp",
    "numpy_tiled:round_per_tile",
    "numpy_tiled:sequential",
    "numpy_tiled:unfused",
    "torch_math",
    "torch_flash",
)
"""Kernels of this project on the CPU, the emulation in several arithmetics, and PyTorch's CPU backends."""
QUEUED = 3
"""Questions a judging process that are under way or wait: enough to keep it busy, few to lose at the end."""
STALL_S = 900.0
"""Longest wait for any answer: a question of the costliest kind took some seconds, a candidate's call has 60."""


@dataclass(slots=True, kw_only=True)
class Honesty:
    """Result of the campaign, or of what was judged of it.

    A case-check is one check that passed or failed on one case and candidate.
    """

    wanted: int
    case_checks: int = 0
    cases: Counter[str] = field(default_factory=Counter)
    """Source -> cases."""
    by_place: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """(candidate, dtype, check) -> case-checks."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Candidate -> seconds in which its cases were judged."""
    alarms: list[FalseAlarm] = field(default_factory=list)
    known: list[FalseAlarm] = field(default_factory=list)
    """Deviations that were traced to the library: no false alarms. The reason is the traced one."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Candidate -> why it is not available here."""
    ended: str = ""
    """Why it ended before what was wanted; empty = it did not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a judging process says about one question."""

    source: str
    by_place: Counter[tuple[str, str, str]]
    seconds: dict[str, float]
    alarms: tuple[FalseAlarm, ...]
    known: tuple[FalseAlarm, ...]


def honesty_campaign(
    *, case_checks: int, jobs: int, seed: int = 0, on_answer: Callable[[Honesty], None] = lambda so_far: None
) -> Honesty:
    """Ask every available honest candidate until that many case-checks are judged.

    Parameters
    ----------
    case_checks
        Case-checks to reach; what is under way then is still taken in.
    jobs
        Judging processes, each with a process for every candidate.
    seed
        Of the questions.
    on_answer
        Sees the result so far after each question.

    Returns
    -------
    Honesty
        `ended` says why it holds fewer than were wanted: interrupted, a judging process died, or no answer came.

    Raises
    ------
    UsageError
        No candidate is available.
    """
    reasons = {name: load(name).unavailable() for name in CANDIDATES}
    names = tuple(name for name, reason in reasons.items() if reason is None)
    require(bool(names), "candidates", reasons, "at least one that is available")
    result = Honesty(wanted=case_checks)
    result.left_out = {name: reason for name, reason in reasons.items() if reason is not None}
    options = RunOptions(candidates=names, run_id="selftest")
    with _pool(options, jobs) as pool:
        try:
            for answer in _answers(pool, questions(seed), jobs, lambda: result.case_checks >= case_checks):
                _take_in(result, answer)
                on_answer(result)
        except KeyboardInterrupt:
            result.ended = "interrupted"
        except BrokenProcessPool:
            result.ended = "a judging process died"
        except TimeoutError:
            result.ended = f"no answer within {STALL_S:g} s"
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            if result.ended:
                _kill_pool()
    return result


def _answers(
    pool: ProcessPoolExecutor, asked: Iterator[Question], jobs: int, enough: Callable[[], bool]
) -> Iterator[Answer]:
    """Answers as they come; no further question once there is enough."""
    pending: set[Future[Answer]] = set()
    while True:
        while len(pending) < QUEUED * jobs and not enough():
            pending.add(pool.submit(_answer_in_pool, next(asked)))
        if not pending:
            return
        done, pending = wait(pending, timeout=STALL_S, return_when=FIRST_COMPLETED)
        if not done:
            raise TimeoutError
        for future in done:
            yield future.result()


def _take_in(result: Honesty, answer: Answer) -> None:
    result.case_checks += answer.by_place.total()
    result.cases[answer.source] += 1
    result.by_place.update(answer.by_place)
    for candidate, seconds in answer.seconds.items():
        result.seconds[candidate] = result.seconds.get(candidate, 0.0) + seconds
    result.alarms += answer.alarms
    result.known += answer.known


def _pool(options: RunOptions, jobs: int) -> ProcessPoolExecutor:
    for variable in THREAD_VARIABLES:
        os.environ.setdefault(variable, "1")
    context = get_context("spawn")
    return ProcessPoolExecutor(jobs, mp_context=context, initializer=_start_judge, initargs=(options, os.getpid()))


def _kill_pool() -> None:
    """End the judging processes, which may never answer; their candidates' processes end with them."""
    for process in active_children():
        process.kill()


_pool_judge: Judge | None = None


def _start_judge(options: RunOptions, parent: int) -> None:
    """Make this process's judge. Ctrl-C is for the campaign alone, which then ends this process."""
    global _pool_judge
    die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _pool_judge = Judge(options)


def _answer_in_pool(question: Question) -> Answer:
    assert _pool_judge is not None
    return answer(_pool_judge, question)


def answer(judge: Judge, question: Question) -> Answer:
    """Judge one question on every candidate of the judge, and count."""
    judge.options = replace(judge.options, checks=question.checks)
    records = list(judge.judge(question.case))
    judged = list(_judged(records))
    problem = question.case.problem
    traced = [(r, f, known_reason(r.candidate, problem, f)) for r, f in judged if f.status.is_failure]
    return Answer(
        source=question.source,
        by_place=Counter((r.candidate, problem.dtype, f.check) for r, f in judged),
        seconds={record.candidate: record.timing.checks_ms / 1e3 for record in records},
        alarms=tuple(_alarm(r, f, "; ".join(f.reasons)) for r, f, reason in traced if reason is None),
        known=tuple(_alarm(r, f, reason) for r, f, reason in traced if reason is not None),
    )


def _judged(records: list[Record]) -> Iterator[tuple[Record, Finding]]:
    for record in records:
        for finding in record.verdict.findings:
            if finding.status not in (Status.UNSUPPORTED, Status.POWERLESS):
                yield record, finding


def _alarm(record: Record, finding: Finding, reason: str) -> FalseAlarm:
    return FalseAlarm(
        candidate=record.candidate,
        case_id=record.case_id,
        check=finding.check,
        status=finding.status,
        reason=reason[:300],
    )
