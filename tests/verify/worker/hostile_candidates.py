"""Candidates that misbehave on request: call seed 0 is answered honestly, seed i by the i-th act."""

from __future__ import annotations

import ctypes
import gc
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import ml_dtypes
import numpy as np

from verify.candidate import Array, Call, KernelFaultError, RefusedError, Reply, Route
from verify.contract import Arithmetic, Capabilities, Contract
from verify.dtypes import STORAGE_DTYPES
from verify.verdict import Status
from verify.worker.protocol import MAGIC

Act = Callable[[Call], Any]
ROUTE = Route(backend="numpy", details={"tile": "none"})
ACTS: list[Act] = []


def act(function: Act) -> Act:
    """Register an act; its seed is its place in ACTS plus one."""
    ACTS.append(function)
    return function


def seed_of(name: str) -> int:
    return 1 + [function.__name__ for function in ACTS].index(name)


def honest(call: Call) -> Reply:
    """Something that depends on every bit of the inputs."""
    names = ("q", "k", "v")
    return Reply(outputs={f"d{name}": np.negative(call.arrays[name]) for name in names}, route=ROUTE)


def outputs(**arrays: Array) -> Reply:
    return Reply(outputs=arrays, route=ROUTE)


class Hostile:
    name = "hostile"
    contract = Contract(capabilities=Capabilities(), arithmetic={name: Arithmetic() for name in STORAGE_DTYPES})

    def unavailable(self) -> str | None:
        return None

    def run(self, call: Call) -> Reply:
        return cast("Reply", ACTS[call.seed - 1](call)) if call.seed else honest(call)


@act
def segfault(call: Call) -> Any:
    ctypes.string_at(0)


@act
def abort(call: Call) -> Any:
    os.abort()


@act
def kill_itself(call: Call) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


@act
def python_loop(call: Call) -> Any:
    while True:
        pass


@act
def loop_in_c(call: Call) -> Any:
    return pow(7, 10**8)  # holds the interpreter lock for minutes and looks at no signal


@act
def loop_that_prints(call: Call) -> Any:
    while True:
        print("x" * 65536)


@act
def ignore_signals_and_sleep(call: Call) -> Any:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    time.sleep(1000)


@act
def exit_at_once(call: Call) -> Any:
    os._exit(0)


@act
def call_sys_exit(call: Call) -> Any:
    sys.exit(0)


@act
def raise_system_exit(call: Call) -> Any:
    raise SystemExit("done")


@act
def raise_keyboard_interrupt(call: Call) -> Any:
    raise KeyboardInterrupt


@act
def raise_error(call: Call) -> Any:
    raise ValueError("tile 7 is\nodd")


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@act
def raise_unprintable(call: Call) -> NoReturn:
    raise UnprintableError


@act
def raise_surrogate(call: Call) -> Any:
    raise ValueError("a lone \ud800 surrogate")


@act
def refuse(call: Call) -> Any:
    raise RefusedError("head_dim 64 is too small")


@act
def report_race(call: Call) -> Any:
    raise KernelFaultError(Status.RACE, "two threads write out[3]")


@act
def report_out_of_bounds(call: Call) -> Any:
    raise KernelFaultError(Status.OUT_OF_BOUNDS, "read of 4 bytes behind k")


@act
def report_pass_as_fault(call: Call) -> Any:
    raise KernelFaultError(Status.PASS, "all is well")


class CompileError(RuntimeError):
    pass


@act
def fail_to_compile(call: Call) -> Any:
    raise CompileError("tile.cu(3): expected a semicolon")


class OutOfMemoryError(RuntimeError):
    pass


@act
def exhaust_the_gpu(call: Call) -> Any:
    raise OutOfMemoryError("GPU 0: 90 GiB asked")


def _lost() -> NoReturn:
    raise RuntimeError("an illegal memory access was encountered")


@act
def lose_the_gpu(call: Call) -> Any:
    """Behave like CuPy after an illegal access: every synchronisation fails from now on."""
    driver = SimpleNamespace(ctxGetCurrent=lambda: 1)
    runtime = SimpleNamespace(deviceSynchronize=_lost)
    sys.modules["cupy"] = cast("Any", SimpleNamespace(cuda=SimpleNamespace(driver=driver, runtime=runtime)))
    _lost()


@act
def allocate_without_end(call: Call) -> Any:
    blocks = []
    while True:
        blocks.append(np.ones(1 << 22))


@act
def throw_bad_alloc(call: Call) -> Any:
    os.write(2, b"terminate called after throwing an instance of 'std::bad_alloc'\n")
    os.abort()


@act
def leave_processes_behind(call: Call) -> Reply:
    sleep = [shutil.which("sleep") or "sleep", "1000"]
    in_own_session = subprocess.Popen(sleep, start_new_session=True)
    without_environment = subprocess.Popen(sleep, env={})
    return outputs(out=np.array([in_own_session.pid, without_environment.pid]))


@act
def fork_and_return_twice(call: Call) -> Reply:
    os.fork()
    return honest(call)


@act
def fork_a_late_writer(call: Call) -> Reply:
    if os.fork():
        return honest(call)
    time.sleep(0.3)
    return Reply(outputs={name: np.zeros_like(array) for name, array in honest(call).outputs.items()}, route=ROUTE)


@act
def close_every_descriptor(call: Call) -> Reply:
    os.closerange(0, 1000)
    return honest(call)


@act
def print_garbage(call: Call) -> Reply:
    os.write(1, MAGIC + os.urandom(4096))
    print("to stdout")
    print("to stderr", file=sys.stderr)
    return honest(call)


@act
def print_50_megabytes(call: Call) -> Reply:
    for _ in range(50):
        os.write(1, b"y" * (1 << 20))
    print("the end")
    return honest(call)


def _descriptor(name: str) -> int:
    options = dict(text.lstrip("-").split("=") for text in sys.argv[1:])
    return int(options[name])


@act
def forge_bytes(call: Call) -> Any:
    os.write(_descriptor("reply"), b"PASS all is well")
    time.sleep(1000)


@act
def forge_message(call: Call) -> Any:
    os.write(_descriptor("reply"), MAGIC + (5).to_bytes(4, "little") + b"\x81\xa1x\x01\x00")
    time.sleep(1000)


@act
def forge_huge_length(call: Call) -> Any:
    os.write(_descriptor("reply"), MAGIC + b"\xff\xff\xff\xff")
    time.sleep(1000)


@act
def truncate_reply(call: Call) -> Any:
    os.write(_descriptor("reply"), MAGIC + (500).to_bytes(4, "little") + b"\x81")
    os._exit(3)


def _intercept_replies(change: Callable[[bytes], bytes]) -> None:
    worker: Any = sys.modules["__main__"]
    write = worker.write_all
    worker.write_all = lambda fd, data: write(fd, change(data))


@act
def append_to_reply(call: Call) -> Reply:
    _intercept_replies(lambda data: data + b"more")
    return honest(call)


@act
def replay_reply(call: Call) -> Reply:
    sent: list[bytes] = []
    _intercept_replies(lambda data: sent[0] if sent else (sent.append(data) or data))
    return honest(call)


@act
def die_after_reply(call: Call) -> Reply:
    threading.Timer(0.15, os._exit, (9,)).start()
    return honest(call)


@act
def speak_after_reply(call: Call) -> Reply:
    threading.Timer(0.15, os.write, (_descriptor("reply"), b"late")).start()
    return honest(call)


@act
def overwrite_input(call: Call) -> Reply:
    reply = honest(call)
    call.arrays["k"][0, 0, 0, 0] += 1
    return reply


@act
def shrink_memory(call: Call) -> Any:
    for name in ("inputs", "outputs"):
        os.ftruncate(_descriptor(name), 0)


@act
def return_views(call: Call) -> Reply:
    return outputs(
        dq=call.arrays["q"], dk=call.arrays["q"][:, ::2].T, dv=np.broadcast_to(call.arrays["v"][:1], (3, 4, 1, 8))
    )


@act
def return_wrong_content(call: Call) -> Reply:
    return outputs(out=np.zeros((2, 3), np.int16), surprise=np.full((), 3.0), dk=np.empty((0, 4)))


@act
def return_nan_payloads(call: Call) -> Reply:
    half = np.array([0x7FA1, 0xFFC3, 0x8000], np.uint16).view(ml_dtypes.bfloat16)
    single = np.array([0x7F800001, 0xFFC12345, 0x80000000], np.uint32).view(np.float32)
    return outputs(out=half, lse=single[::-1], same=call.arrays["q"])


@act
def leave_unwritten(call: Call) -> Reply:
    return outputs(out=np.empty((40, 40), np.float32), lse=np.empty((3000, 300), np.float16))


@act
def return_generator(call: Call) -> Iterator[int]:
    yield 1


@act
def return_list(call: Call) -> Reply:
    return Reply(outputs={"out": cast("Array", [1.0, 2.0])}, route=ROUTE)


@act
def return_no_mapping(call: Call) -> Reply:
    return Reply(outputs=cast("Mapping[str, Array]", [np.zeros(3)]), route=ROUTE)


@act
def return_objects(call: Call) -> Reply:
    return outputs(out=np.array([object()]))


@act
def return_bad_route(call: Call) -> Reply:
    return Reply(outputs={}, route=Route(backend=cast("str", 3)))


@act
def return_too_much(call: Call) -> Reply:
    return outputs(out=np.broadcast_to(np.float32(0), (1 << 14, 1 << 14)))


@act
def patch_numpy(call: Call) -> Reply:
    np.allclose = lambda *_, **__: True
    np.seterr(over="raise")
    os.chdir("/")
    return honest(call)


@act
def report_state(call: Call) -> Reply:
    patched = np.allclose(1.0, 2.0) or np.geterr()["over"] == "raise"
    return outputs(patched=np.array(patched), pid=np.array(os.getpid()))


@act
def report_views(call: Call) -> Reply:
    address = {name: array.__array_interface__["data"][0] % 256 for name, array in call.arrays.items()}
    return outputs(**{name: np.array([address[name], *array.strides]) for name, array in call.arrays.items()})


@act
def break_collector(call: Call) -> Reply:
    gc.disable()
    gc.set_threshold(1)
    return honest(call)


hostile = Hostile()
