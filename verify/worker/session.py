"""What a session promises, how a call's outcome looks, and the session that runs in the caller's own process."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Protocol, Self

import numpy as np

from verify.candidate import Call, Candidate, Reply
from verify.verdict import Status
from verify.worker.execute import execute
from verify.worker.shared_arrays import Arena, changed_inputs, layout_inputs, view_input, write_inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one call ended. PASS means that it ran and replied; the content of the reply is still to be judged."""

    status: Status
    """PASS, or LAUNCH_ERROR, REFUSED, OUT_OF_MEMORY, CRASH, HANG, SHAPE (too large to take), DTYPE (no number)."""
    reply: Reply | None = None
    """Present exactly when status is PASS; its arrays are private, C-contiguous copies."""
    message: str = ""
    """One line: why it is no PASS."""
    traceback: str = ""
    """The candidate's own traceback, or its stack when a signal or the deadline ended it."""
    duration_ms: float = 0.0
    """From the request to the reply or the end of the worker; start-up is not counted."""
    mutated_inputs: tuple[str, ...] = ()
    """Inputs whose elements the candidate overwrote."""
    changed_gaps: tuple[str, ...] = ()
    """Inputs around whose elements it overwrote gap or slack bytes only."""
    notes: tuple[str, ...] = ()
    """Global state that it changed; a worker that died between two calls."""
    output: str = ""
    """Tail of what it printed to stdout and stderr; empty in a session without a worker."""


class Session(Protocol):
    """A candidate that takes calls one after another."""

    def call(self, call: Call) -> Outcome:
        """Run one call. Never raises for what the candidate does."""

    def close(self) -> None:
        """End the session and all that it started. Idempotent."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class InProcessSession:
    """Runs the candidate in this process: for debugging. A crash or a hang is the caller's crash or hang."""

    def __init__(self, candidate: Candidate) -> None:
        self._candidate = candidate
        self._arena = Arena(None)

    def call(self, call: Call) -> Outcome:
        layout = layout_inputs(call.arrays)
        write_inputs(layout, self._arena)
        arrays = {spec.name: view_input(spec, self._arena) for spec in layout.specs}
        private = replace(call, arrays=arrays)
        started = time.perf_counter()
        # KeyboardInterrupt is not the candidate's here: it is the user's Ctrl-C
        answer = execute(self._candidate, private, (Exception, SystemExit))
        duration_ms = 1e3 * (time.perf_counter() - started)
        reply = answer.reply
        if reply is not None:
            outputs = {name: np.array(array, order="C") for name, array in reply.outputs.items()}
            reply = Reply(outputs=outputs, route=reply.route)
        mutated, around = changed_inputs(layout, call.arrays, self._arena)
        return Outcome(
            status=answer.status,
            reply=reply,
            message=answer.message,
            traceback=answer.traceback,
            duration_ms=duration_ms,
            mutated_inputs=mutated,
            changed_gaps=around,
            notes=answer.notes,
        )

    def close(self) -> None:
        self._arena = Arena(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
