"""Runs the lanes of a campaign, here or in processes of their own, and tells an observer where it stands.

Ctrl-C, SIGTERM or a kill leave a log from which the same call goes on.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from multiprocessing.context import SpawnProcess
from multiprocessing.synchronize import Event

from verify.fuzz.coverage import AXES_VERSION
from verify.fuzz.lane import Lane
from verify.fuzz.log import CampaignLog, Line, Started, log_path
from verify.fuzz.plan import Plan
from verify.fuzz.state import CampaignState
from verify.runner import THREAD_VARIABLES
from verify.worker import candidate_for

Observer = Callable[[CampaignState, list[Line]], None]

POLL_S = 0.2
END_GRACE_S = 15.0
"""Time that lanes have to end their current call and close their sessions."""
PARENT_CHECK_S = 0.5


class LaneFailedError(RuntimeError):
    """A lane ended by an error of the harness; its traceback is on stderr."""


def run_campaign(plan: Plan, observe: Observer = lambda state, lines: None) -> tuple[CampaignState, bool]:
    """Run a campaign, or go on with the one whose log lies in the plan's folder.

    Returns
    -------
    (state, interrupted)
        Everything that the log says, earlier parts included, and whether a signal ended it before its budget did.

    Raises
    ------
    LaneFailedError
        A lane died of an error that is the harness's own.
    UsageError
        The folder cannot be written.
    """
    log = CampaignLog(log_path(plan.out, plan.candidate))
    state = CampaignState.empty(
        plan.narrowed(candidate_for(plan.candidate, python=plan.python).contract.capabilities), plan.max_seqlen
    )

    def look() -> None:
        lines = list(log.new_lines())
        state.apply(lines)
        observe(state, lines)

    look()
    log.append(_started(plan))
    interrupted = False
    try:
        with _signals_as_interrupt():
            (_run_in_processes if plan.jobs > 1 else _run_here)(plan, look)
    except KeyboardInterrupt:
        interrupted = True
    look()
    log.close()
    return state, interrupted


def _run_here(plan: Plan, look: Callable[[], None]) -> None:
    """One lane in this process; the observer hears of it between two cases."""
    last = [time.monotonic()]

    def should_stop() -> bool:
        if time.monotonic() - last[0] >= POLL_S:
            last[0] = time.monotonic()
            look()
        return False

    Lane(plan, 0, should_stop).run()


def _run_in_processes(plan: Plan, look: Callable[[], None]) -> None:
    for variable in THREAD_VARIABLES:
        os.environ.setdefault(variable, "1")
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    lanes = [context.Process(target=_lane_main, args=(plan, number, stop)) for number in range(plan.jobs)]
    try:
        for lane in lanes:
            lane.start()
        while any(lane.is_alive() for lane in lanes):
            lanes[0].join(POLL_S) if lanes[0].is_alive() else time.sleep(POLL_S)
            look()
    finally:
        _end(lanes, stop)
    failed = [lane.exitcode for lane in lanes if lane.exitcode]
    if failed:
        raise LaneFailedError(f"{len(failed)} of {plan.jobs} lanes failed, exit codes {failed}")


def _end(lanes: list[SpawnProcess], stop: Event) -> None:
    stop.set()
    deadline = time.monotonic() + END_GRACE_S
    for lane in lanes:
        if lane.pid is not None:
            lane.join(max(0.0, deadline - time.monotonic()))
            if lane.is_alive():
                lane.terminate()
                lane.join()


def _lane_main(plan: Plan, number: int, stop: Event) -> None:
    """Entry point of a lane's process: Ctrl-C reaches it through the main process alone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent, checked = os.getppid(), [0.0]

    def should_stop() -> bool:
        now = time.monotonic()
        if now - checked[0] < PARENT_CHECK_S:
            return False
        checked[0] = now
        # The parent may be killed without a word; its lanes then belong to another process.
        return stop.is_set() or os.getppid() != parent

    Lane(plan, number, should_stop).run()


def _started(plan: Plan) -> Started:
    return Started(
        candidate=plan.candidate,
        seed=plan.seed,
        jobs=plan.jobs,
        axes_version=AXES_VERSION,
        checks=list(plan.checks),
        max_seqlen=plan.max_seqlen,
        at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


@contextmanager
def _signals_as_interrupt() -> Iterator[None]:
    """SIGTERM ends a campaign as Ctrl-C does."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not the main thread: signals are somebody else's
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
