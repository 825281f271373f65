"""A task that crashes or hangs ends alone; results and last notes reach the parent."""

import os
import time

from verify.detection.forked import Tell, run_forked


def _answer(tell: Tell) -> int:
    tell("thinking")
    return 42


def _crash(tell: Tell) -> int:
    tell("before the crash")
    os._exit(3)


def _hang(tell: Tell) -> int:
    tell("before the hang")
    time.sleep(600)
    return 0


def test_results_come_back_and_a_crash_and_a_hang_end_alone() -> None:
    ended = sorted(run_forked([_answer, _crash, _hang], jobs=3, timeout_s=1.0), key=lambda end: end.place)
    assert [end.result for end in ended] == [42, None, None]
    assert [end.note for end in ended] == ["thinking", "before the crash", "before the hang"]
    assert [end.hung for end in ended] == [False, False, True]


def test_children_share_what_the_parent_prepared() -> None:
    prepared = list(range(1000))
    assert [end.result for end in run_forked([lambda tell: sum(prepared)], jobs=1, timeout_s=30.0)] == [sum(prepared)]
