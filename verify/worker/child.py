"""The worker: loads one candidate, then answers calls one after another until its request pipe closes.

Started by verify.worker.process as `python -m verify.worker.child`. It knows no reference, no bound and no verdict.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import inspect
import os
import resource
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from verify.candidate import Call, Candidate
from verify.candidates import load
from verify.verdict import Status
from verify.worker.device import lost_device
from verify.worker.execute import Answer, describe, execute
from verify.worker.protocol import (
    DESCRIPTORS,
    DUMP_SIGNAL,
    Described,
    Failed,
    Ran,
    Ready,
    Request,
    Start,
    ToParent,
    encode_frame,
    read_request,
    route_spec,
    write_all,
)
from verify.worker.shared_arrays import ALIGNMENT, Arena, view_input, write_outputs

_PR_SET_PDEATHSIG = 1
# the candidate may raise anything, SystemExit and KeyboardInterrupt too; each must become an answer
_ANYTHING = (BaseException,)


@dataclass(kw_only=True)
class _MemoryAllowance:
    """RLIMIT_AS: the address space after loading plus what calls may add. The arenas do not count."""

    limit_bytes: int | None = None

    def begin(self, allowance_bytes: int | None) -> None:
        if allowance_bytes is not None:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            self._set(pages * resource.getpagesize() + allowance_bytes)

    def extend(self, nbytes: int) -> None:
        if self.limit_bytes is not None:
            self._set(self.limit_bytes + nbytes)

    def _set(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, resource.RLIM_INFINITY))


class Worker:
    """The candidate and the two arenas of this process."""

    def __init__(self, inputs_fd: int, outputs_fd: int) -> None:
        self._inputs = Arena(inputs_fd, may_grow=False)
        self._outputs = Arena(outputs_fd)
        self._allowance = _MemoryAllowance()
        self._candidate: Candidate | None = None
        self._home = os.getpid()

    def answer(self, message: Start | Request) -> ToParent:
        """Reply to one message of the parent."""
        try:
            return self._start(message) if isinstance(message, Start) else self._call(message)
        except MemoryError as error:  # no room for the outputs
            return _failed(message.nonce, describe(error))

    def _start(self, message: Start) -> ToParent:
        try:
            self._candidate = load(message.loader)
            described = _described(self._candidate) if message.describe else None
        except _ANYTHING as error:
            return _failed(message.nonce, describe(error))
        self._end_copy()
        self._allowance.begin(message.memory_limit_bytes)
        return Ready(nonce=message.nonce, described=described)

    def _call(self, request: Request) -> ToParent:
        assert self._candidate is not None, "the parent sends calls only after Ready"
        self._ensure(self._inputs, request.input_bytes)
        call = Call(
            problem=request.problem,
            arrays={spec.name: view_input(spec, self._inputs) for spec in request.inputs},
            backward=request.backward,
            with_dlse=request.with_dlse,
            seed=request.seed,
            probe_order=request.probe_order,
            prefill=request.prefill,
            splits=request.splits,
        )
        answer = execute(self._candidate, call, _ANYTHING)
        self._end_copy()
        if answer.reply is None:
            return _failed(request.nonce, answer)
        outputs = answer.reply.outputs
        total = sum(array.nbytes for array in outputs.values())
        if total > request.output_limit_bytes:
            message = f"returned outputs of {total} bytes: expected at most {request.output_limit_bytes}"
            return _failed(request.nonce, Answer(status=Status.SHAPE, message=message, notes=answer.notes))
        self._ensure(self._outputs, total + ALIGNMENT * len(outputs))
        specs = write_outputs(outputs, self._outputs)
        return Ran(nonce=request.nonce, outputs=specs, route=route_spec(answer.reply.route), notes=answer.notes)

    def _end_copy(self) -> None:
        """End a copy that the candidate forked and that came back: one call has one writer of outputs and one reply."""
        if os.getpid() != self._home:
            os._exit(0)

    def _ensure(self, arena: Arena, nbytes: int) -> None:
        if nbytes > arena.size:  # the arena maps at most twice what is asked, rounded up to pages
            self._allowance.extend(2 * nbytes + resource.getpagesize())
        arena.ensure(nbytes)


def _described(candidate: Candidate) -> Described:
    return Described(
        name=candidate.name,
        contract=candidate.contract,
        unavailable=candidate.unavailable() or "",
        sources=_sources(candidate),
    )


def _sources(candidate: Candidate) -> tuple[str, ...]:
    named = getattr(candidate, "sources", None)
    if named is not None:
        return tuple(str(Path(path).resolve()) for path in named())
    try:
        return (str(Path(inspect.getfile(type(candidate))).resolve()),)
    except (OSError, TypeError):  # made by exec, or in an interactive session
        return ()


def _failed(nonce: bytes, answer: Answer) -> Failed:
    return Failed(
        nonce=nonce,
        status=answer.status,
        message=answer.message,
        traceback=answer.traceback,
        notes=answer.notes,
        lost_device=lost_device(),
    )


def die_with(parent: int) -> None:
    """Have the kernel kill this process when the parent is gone: a hung candidate reads no closed pipe."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it died before the line above
        os._exit(1)


def main(arguments: list[str]) -> int:
    """Serve until the request pipe closes."""
    parser = argparse.ArgumentParser(prog="verify.worker.child")
    parser.add_argument("--parent", type=int, required=True)
    for name in DESCRIPTORS:
        parser.add_argument(f"--{name}", type=int, required=True)
    fds = vars(parser.parse_args(arguments))
    die_with(fds["parent"])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for name in DESCRIPTORS:
        os.set_inheritable(fds[name], False)
    faulthandler.enable(file=fds["stack"])
    faulthandler.register(DUMP_SIGNAL, file=fds["stack"])
    worker = Worker(fds["inputs"], fds["outputs"])
    while (message := read_request(fds["request"])) is not None:
        reply = encode_frame(worker.answer(message))
        write_all(fds["reply"], reply)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
