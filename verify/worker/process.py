"""One worker process: its pipes, its shared memory, one exchange under a deadline, and its certain end."""

from __future__ import annotations

import os
import secrets
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from verify.verdict import Status
from verify.worker.bundle import bundle_memory
from verify.worker.execute import OWN_FOLDER
from verify.worker.protocol import DESCRIPTORS, DUMP_SIGNAL, MAX_TEXT, FrameBuffer, ProtocolError
from verify.worker.shared_arrays import Arena, create_memory

COOKIE = "ATTN_VERIFY_WORKER"
"""Environment variable whose random value marks a worker and all that it starts, sessions of their own included."""
ALLOCATOR = {
    # glibc returns the top of the heap with every large free: 2,600 page faults and half the time of a 6 ms call here
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    # fresh memory is full of 0x7f (fp32 and bf16 3.4e38, fp16 NaN): what is left unwritten is neither 0 nor right
    "MALLOC_PERTURB_": str(0x80),
}
"""Settings of the C allocator (mallopt(3)) in a worker, where the environment does not set them."""
EXIT_GRACE_S = 2.0
"""Time for a worker whose channel closed to end by itself, so that its exit status can be named."""
KILL_WAIT_S = 10.0
_BLOCK = 1 << 16


class WorkerFault(Exception):  # noqa: N818 - a fault of the worker, not an error of its user
    """The worker died, hung or broke the protocol; it is of no more use."""

    def __init__(self, status: Status, message: str, stack: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.stack = stack


class WorkerProcess:
    """A child process with a request pipe, a reply pipe, a pipe of captured output and two arenas."""

    def __init__(self, python: str | None) -> None:
        self._cookie = secrets.token_hex(16)
        self._memory_fds = [create_memory(f"attn-verify-{name}") for name in DESCRIPTORS[2:]]
        request_read, self._request_fd = os.pipe()
        self._reply_fd, reply_write = os.pipe()
        self._output_fd, output_write = os.pipe()
        theirs = [request_read, reply_write, *self._memory_fds]
        try:
            self._process = _spawn(python, self._cookie, theirs, output_write)
        except OSError:
            self._close_fds()
            raise
        finally:
            for fd in (request_read, reply_write, output_write):
                os.close(fd)
        inputs_fd, outputs_fd, self._stack_fd = self._memory_fds
        self.inputs = Arena(inputs_fd)
        self.outputs = Arena(outputs_fd, may_grow=False, writeable=False)
        self._oom_kills = _oom_kills()
        self._tail = bytearray()
        self._pid_fd = os.pidfd_open(self._process.pid)
        self._poller = select.poll()
        for fd in (self._request_fd, self._reply_fd, self._output_fd):
            os.set_blocking(fd, False)
        for fd in (self._reply_fd, self._output_fd, self._pid_fd):
            self._poller.register(fd, select.POLLIN)
        self._idle_poller = select.poll()
        for fd in (self._reply_fd, self._pid_fd):
            self._idle_poller.register(fd, select.POLLIN)

    @property
    def pid(self) -> int:
        return self._process.pid

    def idle_fault(self) -> str | None:
        """Why a worker that has nothing to do is of no use any more, or None when it is well."""
        flagged = {fd for fd, _ in self._idle_poller.poll(0)}
        if self._pid_fd in flagged:
            return f"the worker was lost: {self._exit_fault('after its reply to the call before')}"
        return "the worker was lost: spoke after its reply to the call before" if flagged else None

    def exchange(self, frame: bytes, timeout_s: float, doing: str = "a call") -> bytes:
        """Send one frame and return the body of the reply; WorkerFault when none comes in time."""
        deadline = time.monotonic() + timeout_s
        when = f"in the middle of {doing}"
        self._tail.clear()
        rest = self._send(memoryview(frame))
        buffer = FrameBuffer()
        while (left := deadline - time.monotonic()) > 0:
            flagged = dict(self._poller.poll(1e3 * left))
            if self._request_fd in flagged:
                rest = self._send(rest)
            if self._output_fd in flagged:
                self._collect_output()
            if self._reply_fd in flagged:
                body = self._receive(buffer, when)
                if body is not None:
                    return body
            elif self._pid_fd in flagged:
                raise self._exit_fault(when)
        raise WorkerFault(Status.HANG, f"gave no reply within {timeout_s:g} s", self._ask_for_stack())

    def printed(self) -> str:
        """Tail of what the process printed since the last request."""
        self._collect_output()
        return self._tail.decode(errors="replace")

    def end(self, grace_s: float = 0.0) -> None:
        """Close the channels, kill the process group and everything that carries the cookie, and reap."""
        os.close(self._request_fd)
        if grace_s:
            ended = select.poll()
            ended.register(self._pid_fd, select.POLLIN)
            ended.poll(1e3 * grace_s)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # not reaped yet, so the id is still its own
        _kill_marked(self._cookie)
        with suppress(subprocess.TimeoutExpired):  # a process stuck in a driver cannot be reaped
            self._process.wait(KILL_WAIT_S)
        self._request_fd = -1
        self._close_fds()

    def _send(self, rest: memoryview) -> memoryview:
        with suppress(BlockingIOError, BrokenPipeError):  # a dead reader shows on the other descriptors
            rest = rest[os.write(self._request_fd, rest) :]
        if rest:
            self._poller.register(self._request_fd, select.POLLOUT)
        else:
            with suppress(KeyError):
                self._poller.unregister(self._request_fd)
        return rest

    def _receive(self, buffer: FrameBuffer, when: str) -> bytes | None:
        data = os.read(self._reply_fd, _BLOCK)
        if not data:
            raise self._exit_fault(when)
        try:
            body = buffer.feed(data)
        except ProtocolError as error:
            raise WorkerFault(Status.CRASH, str(error)) from error
        if body is not None and buffer.surplus:
            raise WorkerFault(Status.CRASH, f"wrote {buffer.surplus} bytes behind its reply")
        return body

    def _collect_output(self) -> None:
        """Take what is in the pipe, a bounded amount at a time, and keep the tail."""
        for _ in range(16):
            try:
                data = os.read(self._output_fd, _BLOCK)
            except BlockingIOError:
                return
            if not data:
                with suppress(KeyError):
                    self._poller.unregister(self._output_fd)
                return
            self._tail += data
            del self._tail[:-MAX_TEXT]

    def _exit_fault(self, when: str) -> WorkerFault:
        """Name the end of the process, which is left unreaped so that its group can still be killed."""
        deadline = time.monotonic() + EXIT_GRACE_S
        while (end := self._peek()) is None:
            if time.monotonic() > deadline:
                return WorkerFault(Status.CRASH, f"closed its reply channel {when}")
            self._collect_output()
            time.sleep(0.005)
        if end.si_code == os.CLD_EXITED:
            return WorkerFault(Status.CRASH, f"exited with code {end.si_status} {when}")
        name = signal.Signals(end.si_status).name
        if end.si_status == signal.SIGKILL and _oom_kills() > self._oom_kills:
            return WorkerFault(Status.OUT_OF_MEMORY, "killed by SIGKILL while the kernel was out of memory")
        if end.si_status == signal.SIGABRT and "bad_alloc" in self.printed():
            return WorkerFault(Status.OUT_OF_MEMORY, "killed by SIGABRT after std::bad_alloc")
        return WorkerFault(Status.CRASH, f"killed by {name} {when}", self._stack())

    def _peek(self) -> os.waitid_result | None:
        """How the process ended, or None while it runs; it stays unreaped."""
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)

    def _ask_for_stack(self) -> str:
        """Python stack of a hung worker: its handler runs in C, whoever holds the interpreter lock."""
        with suppress(ProcessLookupError):
            os.kill(self._process.pid, DUMP_SIGNAL)
        size, deadline = 0, time.monotonic() + 0.5
        while time.monotonic() < deadline:
            time.sleep(0.02)
            previous, size = size, os.fstat(self._stack_fd).st_size
            if size and size == previous:
                break
        return self._stack()

    def _stack(self) -> str:
        dump = os.pread(self._stack_fd, MAX_TEXT, 0).decode(errors="replace")
        ours = (OWN_FOLDER, "/proc/self/fd/", "<frozen runpy>", "<frozen importlib")
        return "\n".join(line for line in dump.splitlines() if not any(mark in line for mark in ours))

    def _close_fds(self) -> None:
        fds = [self._request_fd, self._reply_fd, self._output_fd, getattr(self, "_pid_fd", -1), *self._memory_fds]
        for fd in fds:
            if fd >= 0:
                os.close(fd)


def _spawn(python: str | None, cookie: str, theirs: Sequence[int], output_fd: int) -> subprocess.Popen[bytes]:
    """Start the child in a session of its own: this Python with its module path, or another one with the bundle."""
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    environment = {**ALLOCATOR, **os.environ, "PYTHONPATH": path, COOKIE: cookie}
    program = ["-m", "verify.worker.child"]
    bundle = []
    if python is not None:
        # Its module path may hold this project or its namesakes: the bundle and the environment's packages are enough.
        del environment["PYTHONPATH"]
        bundle = [bundle_memory()]
        program = [f"/proc/self/fd/{bundle[0]}"]
    command = [python or sys.executable, "-u", *program, f"--parent={os.getpid()}"]
    command += [f"--{name}={fd}" for name, fd in zip(DESCRIPTORS, theirs, strict=True)]
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output_fd,
            stderr=output_fd,
            pass_fds=(*theirs, *bundle),
            start_new_session=True,
            env=environment,
        )
    finally:
        for fd in bundle:
            os.close(fd)


def _kill_marked(cookie: str) -> None:
    """Kill every process that carries the cookie; again while new ones show up."""
    for _ in range(20):
        found = list(marked_processes(cookie))
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not found:
            return
        time.sleep(0.005)


def marked_processes(cookie: str) -> Iterator[int]:
    """Process ids whose environment at start held the cookie (zombies show none)."""
    wanted = f"{COOKIE}={cookie}".encode()
    for entry in os.scandir("/proc"):
        if not entry.name.isdecimal():
            continue
        with suppress(OSError):
            if wanted in Path(entry.path, "environ").read_bytes().split(b"\0"):
                yield int(entry.name)


def _oom_kills() -> int:
    """Processes that the kernel's out-of-memory killer has ended since boot; 0 where it does not say."""
    with suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
