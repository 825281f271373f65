"""Runs tasks in forked children: a crash, a hang or spoilt memory ends one task. What is prepared is shared."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import connection, get_context
from multiprocessing.connection import Connection
from typing import Any, Generic, TypeVar

T = TypeVar("T")
Tell = Callable[[str], None]
Task = Callable[[Tell], T]
"""Gets a function that notes how far it is, and returns something that can be pickled."""

_M_PERTURB = -6
"""mallopt(3): fills fresh and freed memory, so that an output that is never written is seen."""
_FILL = 0x80


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended(Generic[T]):
    """How one task ended."""

    place: int
    """Its index among the tasks."""
    result: T | None
    """None when the child died or ran out of time."""
    note: str
    """The last thing that it noted."""
    hung: bool
    seconds: float


@dataclass(slots=True)
class _Child:
    place: int
    process: Any
    reader: Connection
    started: float = field(default_factory=time.perf_counter)
    note: str = ""


def run_forked(tasks: Sequence[Task[T]], *, jobs: int, timeout_s: float) -> Iterator[Ended[T]]:
    """Results in the order in which the tasks end, at most `jobs` at a time, each with its own deadline."""
    waiting = list(enumerate(tasks))[::-1]
    running: dict[Connection, _Child] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                child = _start(*waiting.pop())
                running[child.reader] = child
            for reader in connection.wait(list(running), timeout=0.5):
                assert isinstance(reader, Connection)
                ended: Ended[T] | None = _read(running[reader])
                if ended is not None:
                    del running[reader]
                    yield ended
            for reader, child in list(running.items()):
                if time.perf_counter() - child.started > timeout_s:
                    del running[reader]
                    yield _stop(child, hung=True)
    finally:
        for child in running.values():
            _stop(child, hung=True)


def _start(place: int, task: Task[Any]) -> _Child:
    context = get_context("fork")
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(task, writer), daemon=True)
    process.start()
    writer.close()
    return _Child(place=place, process=process, reader=reader)


def _work(task: Task[Any], writer: Connection) -> None:
    ctypes.CDLL(None).mallopt(_M_PERTURB, _FILL)
    result = task(lambda note: writer.send(("note", note)))
    writer.send(("result", result))


def _read(child: _Child) -> Ended[Any] | None:
    """What the child sent, or its end."""
    try:
        kind, value = child.reader.recv()
    except EOFError:
        return _stop(child, hung=False)
    if kind == "note":
        child.note = value
        return None
    child.process.join()
    child.reader.close()
    seconds = time.perf_counter() - child.started
    return Ended(place=child.place, result=value, note=child.note, hung=False, seconds=seconds)


def _stop(child: _Child, *, hung: bool) -> Ended[Any]:
    child.process.kill()
    child.process.join()
    child.reader.close()
    seconds = time.perf_counter() - child.started
    return Ended(place=child.place, result=None, note=child.note, hung=hung, seconds=seconds)
