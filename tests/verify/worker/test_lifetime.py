"""A session starts late, ends surely, and leaves no process, descriptor or named memory behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from verify.candidate import Call
from verify.errors import UsageError
from verify.verdict import Status
from verify.worker import ProcessSession

LOADER = "hostile_candidates:hostile"
Act = Callable[[str], Call]


def is_alive(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until_dead(pid: int, seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not is_alive(pid)


def left_behind(session: ProcessSession, act: Act) -> list[int]:
    reply = session.call(act("leave_processes_behind")).reply
    assert reply is not None
    pids: list[int] = reply.outputs["out"].tolist()
    assert all(map(is_alive, pids))
    return pids


def test_close_ends_worker_and_all_that_it_started(hostile: Any, act: Act) -> None:
    with ProcessSession(LOADER, timeout_s=20.0) as session:
        pids = [*left_behind(session, act), session.pid or 0]
    assert all(map(wait_until_dead, pids))
    session.close()


def test_fault_ends_all_that_the_worker_started(worker_session: ProcessSession, act: Act) -> None:
    pids = left_behind(worker_session, act)
    assert worker_session.call(act("segfault")).status is Status.CRASH
    assert all(map(wait_until_dead, pids))


def test_no_descriptor_and_no_named_memory_is_left(hostile: Any, act: Act) -> None:
    def descriptors() -> list[str]:
        return sorted(entry.name for entry in Path("/proc/self/fd").iterdir())

    before = descriptors()
    with ProcessSession(LOADER, timeout_s=20.0) as session:
        for name in ("print_garbage", "exit_at_once", "print_garbage"):
            session.call(act(name))
        assert "/dev/shm" not in Path(f"/proc/{session.pid}/maps").read_text()
    assert descriptors() == before


PARENT = """
import sys
sys.path.insert(0, {tests!r})
import conftest, hostile_candidates
from verify.worker import ProcessSession
session = ProcessSession(conftest.LOADER, timeout_s=100.0)
session.call(conftest.make_call())
print(session.pid, flush=True)
session.call(conftest.make_call(hostile_candidates.seed_of("loop_in_c")))
"""


def test_hung_worker_dies_with_its_parent() -> None:
    script = PARENT.format(tests=str(Path(__file__).parent))
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        time.sleep(0.2)
        assert is_alive(worker)
        parent.kill()
    assert wait_until_dead(worker)


def test_interrupt_of_the_caller_ends_the_worker(hostile: Any, act: Act) -> None:
    with ProcessSession(LOADER, timeout_s=30.0) as session:
        session.call(act("print_garbage"))
        worker = session.pid or 0
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            session.call(act("python_loop"))
        assert wait_until_dead(worker)


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        ("1 / 0", Status.LAUNCH_ERROR, "broken:made did not start: ZeroDivisionError"),
        ("pass", Status.LAUNCH_ERROR, "expected one of its attributes"),
        ("raise SystemExit(2)", Status.CRASH, "did not start: tried to exit"),
        ("import os; os._exit(4)", Status.CRASH, "exited with code 4 in the middle of start-up"),
        ("while True: pass", Status.HANG, "gave no reply within 1 s"),
    ],
)
def test_failed_start_is_named(
    body: str, status: Status, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: Act
) -> None:
    (tmp_path / "broken.py").write_text(body)
    monkeypatch.syspath_prepend(str(tmp_path))
    with ProcessSession(
        "broken:made", timeout_s=20.0, start_timeout_s=1.0 if status is Status.HANG else 60.0
    ) as session:
        outcome = session.call(act("refuse"))
    assert outcome.status is status
    assert reason in outcome.message


def test_start_is_tried_twice_not_for_every_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: Act) -> None:
    log = tmp_path / "log"
    (tmp_path / "counted.py").write_text(f"open({str(log)!r}, 'a').write('x')\n1 / 0")
    monkeypatch.syspath_prepend(str(tmp_path))
    with ProcessSession("counted:made", timeout_s=20.0) as session:
        statuses = {session.call(act("refuse")).status for _ in range(5)}
    assert statuses == {Status.LAUNCH_ERROR}
    assert log.read_text() == "xx"


def test_start_up_is_not_charged_to_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: Act) -> None:
    (tmp_path / "slow.py").write_text("import time; time.sleep(1.2)\nfrom hostile_candidates import hostile")
    monkeypatch.syspath_prepend(str(tmp_path))
    with ProcessSession("slow:hostile", timeout_s=1.0) as session:
        outcome = session.call(act("print_garbage"))
    assert outcome.status is Status.PASS
    assert outcome.duration_ms < 1e3


def test_other_interpreter_gets_the_project_but_not_this_path(hostile: Any, act: Act) -> None:
    with ProcessSession(LOADER, timeout_s=20.0, python=sys.executable) as session:
        outcome = session.call(act("refuse"))
    assert outcome.status is Status.LAUNCH_ERROR
    assert f"candidate={LOADER!r}: expected one of" in outcome.message


@pytest.mark.parametrize("options", [{"timeout_s": 0}, {"memory_limit_bytes": 0}, {"python": "/no/such/python"}])
def test_impossible_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(options))):
        ProcessSession(LOADER, **({"timeout_s": 1.0} | options))
