"""The session that keeps the candidate in a process of its own and outlives whatever it does.

It guards against faults and shortcuts, not against an attacker: a worker runs as the same user and could signal or
trace its parent. What it sends is judged by the parent alone, so a forged reply is worth no more than its arrays.
"""

from __future__ import annotations

import functools
import secrets
import shutil
import sys
import time
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Self

from verify.candidate import Call, Candidate, RefusedError, Reply, output_shapes
from verify.candidates import load
from verify.candidates.user import names_user_code
from verify.errors import UsageError, require
from verify.verdict import Status
from verify.worker.process import WorkerFault, WorkerProcess
from verify.worker.protocol import (
    Described,
    Failed,
    ProtocolError,
    Ran,
    Ready,
    Request,
    Start,
    ToParent,
    decode_reply,
    encode_frame,
)
from verify.worker.session import Outcome
from verify.worker.shared_arrays import changed_inputs, layout_inputs, read_outputs, write_inputs

START_TIMEOUT_S = 180.0
"""Generous: importing torch took 3 s alone and tens of seconds on a machine with all cores busy."""
CLOSE_GRACE_S = 1.0
_START_ATTEMPTS = 2
_DOUBTFUL = (Status.CRASH, Status.HANG, Status.OUT_OF_MEMORY, Status.OUT_OF_BOUNDS)
"""A worker that reports one of these of itself may be damaged: the next call gets a new one."""
_OUTPUT_SLACK_BYTES = 64 << 20
"""Outputs may exceed their expected size by this much, so that a wrong shape still reaches the checks."""


@dataclass(slots=True)
class _StartFault:
    """How the last attempts to start a worker ended."""

    attempts: int = 0
    outcome: Outcome | None = None


class ProcessSession:
    """Calls a candidate in a child process (Linux); starts a new child after a fault.

    Parameters
    ----------
    loader
        Candidate name known to verify.candidates.load, or `package.module:attribute`.
    timeout_s
        Seconds from a request to its reply; start-up has start_timeout_s of its own.
    memory_limit_bytes
        Address space that calls may add to what loading took; None = no limit (CUDA needs none: it reserves terabytes).
    python
        Interpreter (3.11 or newer) of another environment that holds NumPy; None = this one, with its sys.path. Without
        ml_dtypes there, functions on torch tensors still take bf16.

    Notes
    -----
    The kernel kills a worker with the thread that started it: call from a thread that lives as long as the session.
    """

    def __init__(
        self,
        loader: str,
        *,
        timeout_s: float,
        memory_limit_bytes: int | None = None,
        python: str | None = None,
        start_timeout_s: float = START_TIMEOUT_S,
    ) -> None:
        require(sys.platform == "linux", "platform", sys.platform, "linux, or an InProcessSession")
        require(0 < timeout_s < 1e6, "timeout_s", timeout_s, "seconds in (0, 1e6)")
        limited = memory_limit_bytes is None or memory_limit_bytes > 0
        require(limited, "memory_limit_bytes", memory_limit_bytes, "bytes > 0 or None")
        found = python is None or shutil.which(python) is not None
        require(found, "python", python, "an interpreter that can be executed, or None")
        self._loader = loader
        self._timeout_s = timeout_s
        self._memory_limit_bytes = memory_limit_bytes
        self._python = python
        self._start_timeout_s = start_timeout_s
        self._worker: WorkerProcess | None = None
        self._start_fault = _StartFault()
        self._described: Described | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the worker, or None when none runs."""
        return None if self._worker is None else self._worker.pid

    def call(self, call: Call) -> Outcome:
        note = self._retire_idle_corpse()
        try:
            outcome = self._start() or self._exchange(call)
        except BaseException:  # Ctrl-C and the like: the worker is in the middle of something
            self.close()
            raise
        return replace(outcome, notes=(*note, *outcome.notes)) if note else outcome

    def describe(self) -> Candidate:
        """What the candidate declares, asked in its own process; its `run` refuses.

        Raises
        ------
        UsageError
            It did not load; the message holds the candidate's own traceback.
        """
        outcome = self._start(describe=True)
        if outcome is not None:
            raise UsageError("\n".join(part for part in (outcome.message, outcome.traceback.rstrip()) if part))
        described = self._described
        assert described is not None, "a worker that was asked to describe does so or fails"
        return DescribedCandidate(described)

    def close(self) -> None:
        self._end(CLOSE_GRACE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _end(self, grace_s: float = 0.0) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.end(grace_s)

    def _retire_idle_corpse(self) -> tuple[str, ...]:
        """Drop a worker that died or talked after its last reply: this call is not to blame."""
        fault = None if self._worker is None else self._worker.idle_fault()
        if fault is None:
            return ()
        self._end()
        return (fault,)

    def _start(self, *, describe: bool = False) -> Outcome | None:
        """Have a worker with the candidate loaded; the outcome of the failed start otherwise."""
        if self._worker is not None:
            if not describe or self._described is not None:
                return None
            self._end()
        if self._start_fault.outcome is not None and self._start_fault.attempts >= _START_ATTEMPTS:
            return self._start_fault.outcome
        self._worker = WorkerProcess(self._python)
        nonce = secrets.token_bytes(16)
        limit = self._memory_limit_bytes
        start = Start(nonce=nonce, loader=self._loader, memory_limit_bytes=limit, describe=describe)
        outcome = self._converse(self._worker, encode_frame(start), nonce, self._start_timeout_s, "start-up")
        if isinstance(outcome, Ready) and (outcome.described is not None) == describe:
            self._described = outcome.described or self._described
            self._start_fault = _StartFault()
            return None
        if not isinstance(outcome, Outcome):
            outcome = _failure(outcome, self._worker.printed())
        outcome = replace(outcome, message=f"{self._loader} did not start: {outcome.message}", duration_ms=0.0)
        self._start_fault = _StartFault(self._start_fault.attempts + 1, outcome)
        self._end()
        return outcome

    def _exchange(self, call: Call) -> Outcome:
        worker = self._worker
        assert worker is not None, "_start succeeded"
        layout = layout_inputs(call.arrays)
        write_inputs(layout, worker.inputs)
        nonce, limit_bytes = secrets.token_bytes(16), _output_limit(call)
        request = Request(
            nonce=nonce,
            problem=call.problem,
            inputs=layout.specs,
            input_bytes=layout.nbytes,
            output_limit_bytes=limit_bytes,
            backward=call.backward,
            with_dlse=call.with_dlse,
            seed=call.seed,
            probe_order=call.probe_order,
            prefill=call.prefill,
            splits=call.splits,
        )
        started = time.perf_counter()
        answer = self._converse(worker, encode_frame(request), nonce, self._timeout_s, "a call")
        duration_ms = 1e3 * (time.perf_counter() - started)
        if isinstance(answer, Outcome):
            self._end()
            return replace(answer, duration_ms=duration_ms)
        mutated, around = changed_inputs(layout, call.arrays, worker.inputs)
        outcome = self._taken(worker, answer, limit_bytes)
        return replace(outcome, duration_ms=duration_ms, mutated_inputs=mutated, changed_gaps=around)

    def _converse(
        self, worker: WorkerProcess, frame: bytes, nonce: bytes, timeout_s: float, doing: str
    ) -> ToParent | Outcome:
        """The worker's reply, or the outcome of the fault in its place."""
        try:
            return decode_reply(worker.exchange(frame, timeout_s, doing), nonce)
        except WorkerFault as fault:
            return Outcome(status=fault.status, message=str(fault), traceback=fault.stack, output=worker.printed())
        except ProtocolError as error:
            return Outcome(status=Status.CRASH, message=str(error), output=worker.printed())

    def _taken(self, worker: WorkerProcess, answer: ToParent, limit_bytes: int) -> Outcome:
        """Outcome of a well-formed answer. A worker whose memory or GPU context is in doubt is not kept."""
        printed = worker.printed()
        try:
            if isinstance(answer, Ran):
                outputs = read_outputs(answer.outputs, worker.outputs, limit_bytes)
                reply = Reply(outputs=outputs, route=answer.route.to_route())
                return Outcome(status=Status.PASS, reply=reply, notes=answer.notes, output=printed)
            outcome = _failure(answer, printed)
        except ProtocolError as error:
            outcome = Outcome(status=Status.CRASH, message=str(error), output=printed)
        lost = isinstance(answer, Failed) and answer.lost_device
        if lost or outcome.status in _DOUBTFUL:
            self._end()
        return outcome


def candidate_for(name: str, *, python: str | None = None, timeout_s: float = START_TIMEOUT_S) -> Candidate:
    """The declaration of a candidate: loaded here when it is this project's code, else asked in its own process.

    Raises
    ------
    UsageError
        For an unknown name, or a user's module that fails; the message then holds its traceback.
    """
    if python is None and not names_user_code(name):
        return load(name)
    return _described(name, python, timeout_s)


@functools.cache
def _described(name: str, python: str | None, timeout_s: float) -> Candidate:
    with ProcessSession(name, timeout_s=timeout_s, python=python) as session:
        return session.describe()


class DescribedCandidate:
    """A candidate that lives in another process: its declaration."""

    def __init__(self, described: Described) -> None:
        self.name = described.name
        self.contract = described.contract
        self._described = described

    def unavailable(self) -> str | None:
        """Why it cannot run in its environment, or None."""
        return self._described.unavailable or None

    def sources(self) -> tuple[Path, ...]:
        """Files that hold it, as far as this process sees them."""
        return tuple(path for path in map(Path, self._described.sources) if path.is_file())

    def run(self, call: Call) -> Reply:
        raise RefusedError(f"{self.name} runs in a process of its own only")


def _failure(answer: ToParent, printed: str) -> Outcome:
    if not isinstance(answer, Failed):
        message = f"sent {type(answer).__name__.lower()} where it does not belong"
        return Outcome(status=Status.CRASH, message=message, output=printed)
    return Outcome(
        status=Status(answer.status),
        message=answer.message,
        traceback=answer.traceback,
        notes=(*answer.notes, f"the GPU context was lost: {answer.lost_device}")
        if answer.lost_device
        else answer.notes,
        output=printed,
    )


def _output_limit(call: Call) -> int:
    """Twice the expected outputs in the widest dtype and a drawn dropout mask, and slack."""
    p = call.problem
    elements = sum(prod(shape) for shape in output_shapes(p, call.arrays).values())
    mask = p.batch * p.nheads * p.seqlen_q * p.seqlen_k
    return 2 * (8 * elements + mask) + _OUTPUT_SLACK_BYTES
