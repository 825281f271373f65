"""Whatever a candidate does to its process, the caller gets a typed outcome and the next honest call is right."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from verify.candidate import Call
from verify.verdict import Status
from verify.worker import ProcessSession, Session

Act = Callable[[str], Call]
Check = Callable[[Session], None]

FATAL = [
    ("segfault", Status.CRASH, "killed by SIGSEGV in the middle of a call"),
    ("abort", Status.CRASH, "killed by SIGABRT in the middle of a call"),
    ("kill_itself", Status.CRASH, "killed by SIGKILL in the middle of a call"),
    ("exit_at_once", Status.CRASH, "exited with code 0 in the middle of a call"),
    ("truncate_reply", Status.CRASH, "exited with code 3 in the middle of a call"),
    ("close_every_descriptor", Status.CRASH, "in the middle of a call"),
    ("forge_bytes", Status.CRASH, "foreign bytes"),
    ("forge_message", Status.CRASH, "malformed reply"),
    ("forge_huge_length", Status.CRASH, "announced a reply of 4294967295 bytes"),
    ("append_to_reply", Status.CRASH, "wrote 4 bytes behind its reply"),
    ("allocate_without_end", Status.OUT_OF_MEMORY, "MemoryError"),
    ("throw_bad_alloc", Status.OUT_OF_MEMORY, "bad_alloc"),
]
ENDLESS = ["python_loop", "loop_in_c", "loop_that_prints", "ignore_signals_and_sleep"]
RAISED = [
    ("call_sys_exit", Status.CRASH, "tried to exit: SystemExit: 0"),
    ("raise_system_exit", Status.CRASH, "tried to exit: SystemExit: done"),
    ("raise_error", Status.LAUNCH_ERROR, "odd"),
    ("raise_unprintable", Status.LAUNCH_ERROR, "UnprintableError"),
    ("raise_surrogate", Status.LAUNCH_ERROR, "a lone \\ud800 surrogate"),
    ("refuse", Status.REFUSED, "head_dim 64 is too small"),
    ("report_race", Status.RACE, "two threads write out[3]"),
    ("report_out_of_bounds", Status.OUT_OF_BOUNDS, "read of 4 bytes behind k"),
    ("report_pass_as_fault", Status.LAUNCH_ERROR, "all is well"),
    ("fail_to_compile", Status.COMPILE_ERROR, "expected a semicolon"),
    ("exhaust_the_gpu", Status.OUT_OF_MEMORY, "90 GiB asked"),
    ("return_generator", Status.LAUNCH_ERROR, "returned a generator: expected a Reply"),
    ("return_list", Status.LAUNCH_ERROR, "output 'out' as list"),
    ("return_no_mapping", Status.LAUNCH_ERROR, "outputs as list"),
    ("return_bad_route", Status.LAUNCH_ERROR, "malformed route"),
    ("return_objects", Status.DTYPE, "dtype object"),
]


@pytest.mark.parametrize(("name", "status", "reason"), FATAL)
def test_fatal_act_is_named(
    name: str, status: Status, reason: str, worker_session: ProcessSession, act: Act, assert_honest: Check
) -> None:
    outcome = worker_session.call(act(name))
    assert (outcome.status, outcome.reply) == (status, None), outcome
    assert reason in outcome.message
    assert_honest(worker_session)


def test_kill_by_the_kernel_out_of_memory_is_named(
    worker_session: ProcessSession, act: Act, assert_honest: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills = iter(range(100))  # the counter in /proc/vmstat, higher at each look
    worker_session.close()
    monkeypatch.setattr("verify.worker.process._oom_kills", lambda: next(kills))
    outcome = worker_session.call(act("kill_itself"))
    assert (outcome.status, outcome.reply) == (Status.OUT_OF_MEMORY, None), outcome
    assert "SIGKILL while the kernel was out of memory" in outcome.message
    assert_honest(worker_session)


@pytest.mark.parametrize("name", ENDLESS)
def test_endless_act_is_a_hang(name: str, hasty_session: ProcessSession, act: Act, assert_honest: Check) -> None:
    outcome = hasty_session.call(act(name))
    assert outcome.status is Status.HANG, outcome
    assert 1e3 <= outcome.duration_ms < 10e3
    # the stack comes from a signal handler in C; one act has disarmed it
    assert (f"in {name}" in outcome.traceback) == (name != "ignore_signals_and_sleep")
    assert_honest(hasty_session)


@pytest.mark.parametrize(("name", "status", "reason"), RAISED)
def test_raised_or_malformed_answer_has_one_status_in_both_sessions(
    name: str, status: Status, reason: str, session: Session, act: Act, assert_honest: Check
) -> None:
    outcome = session.call(act(name))
    assert (outcome.status, outcome.reply) == (status, None), outcome
    assert reason in outcome.message
    assert "\n" not in outcome.message
    assert_honest(session)


def test_keyboard_interrupt_of_a_worker_is_its_error(worker_session: ProcessSession, act: Act) -> None:
    outcome = worker_session.call(act("raise_keyboard_interrupt"))
    assert (outcome.status, outcome.message) == (Status.LAUNCH_ERROR, "KeyboardInterrupt")


def test_lost_gpu_context_ends_the_worker_and_is_noted(
    worker_session: ProcessSession, act: Act, assert_honest: Check
) -> None:
    outcome = worker_session.call(act("lose_the_gpu"))
    assert outcome.status is Status.LAUNCH_ERROR
    assert "the GPU context was lost: an illegal memory access was encountered" in outcome.notes
    assert worker_session.pid is None
    assert_honest(worker_session)


def test_shared_memory_cannot_be_pulled_away(worker_session: ProcessSession, act: Act, assert_honest: Check) -> None:
    outcome = worker_session.call(act("shrink_memory"))
    assert outcome.status is Status.LAUNCH_ERROR
    assert "not permitted" in outcome.message
    assert_honest(worker_session)


def test_too_many_output_bytes_are_a_wrong_shape(worker_session: ProcessSession, act: Act) -> None:
    outcome = worker_session.call(act("return_too_much"))
    assert outcome.status is Status.SHAPE
    assert str(1 << 30) in outcome.message


def test_traceback_begins_in_the_candidate(session: Session, act: Act) -> None:
    text = session.call(act("raise_error")).traceback
    assert "ValueError: tile 7 is\nodd" in text
    assert "in raise_error" in text
    assert "verify/worker/" not in text.replace("tests/verify/worker/", "")


def test_stack_of_a_crashed_worker_names_the_act(worker_session: ProcessSession, act: Act) -> None:
    assert "in segfault" in worker_session.call(act("segfault")).traceback


def test_reply_of_an_earlier_call_is_not_taken(worker_session: ProcessSession, act: Act, assert_honest: Check) -> None:
    assert worker_session.call(act("replay_reply")).status is Status.PASS
    outcome = worker_session.call(act("report_state"))
    assert (outcome.status, outcome.reply) == (Status.CRASH, None)
    assert "stale or forged reply" in outcome.message
    assert_honest(worker_session)


@pytest.mark.parametrize("name", ["die_after_reply", "speak_after_reply"])
def test_fault_between_calls_is_no_fault_of_the_next(
    name: str, worker_session: ProcessSession, act: Act, assert_honest: Check
) -> None:
    assert worker_session.call(act(name)).status is Status.PASS
    time.sleep(0.5)
    outcome = worker_session.call(act("report_state"))
    assert outcome.status is Status.PASS
    assert "after its reply to the call before" in outcome.notes[0]
    assert_honest(worker_session)


def test_forked_copy_does_not_write_outputs(worker_session: ProcessSession, act: Act) -> None:
    assert worker_session.call(act("fork_a_late_writer")).status is Status.PASS
    worker = worker_session._worker
    assert worker is not None
    before = bytes(worker.outputs.buffer)
    time.sleep(0.6)
    assert bytes(worker.outputs.buffer) == before
    assert any(before)


def test_forked_copy_does_not_answer_twice(worker_session: ProcessSession, act: Act, assert_honest: Check) -> None:
    for _ in range(3):
        assert worker_session.call(act("fork_and_return_twice")).status is Status.PASS
        assert_honest(worker_session)
