"""What ends a launch, and what is refused before one."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest

from kernels.cpu_backend import Build, CompileError, FaultKind, compile_module, guarded_array
from tests.kernels.cpu_backend.launching import run_kernel, write_kernel


@pytest.mark.parametrize("build", [Build.FAST, Build.CHECKED])
def test_endless_loop_is_ended_by_the_time_limit(build: Build, tmp_path: Path) -> None:
    _, buffer = guarded_array((1,), np.int32, name="out", fill=0)
    source = write_kernel(tmp_path, "while (*(volatile int*)out == 0) {}", "int* out")
    (fault,) = run_kernel(source, buffer, threads=1, build=build, time_limit_s=0.2).faults
    assert (fault.kind, fault.line) == (FaultKind.TIMEOUT, 3)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("__trap();", FaultKind.TRAP),
        ("assert(out[0] == 1);", FaultKind.TRAP),
        ("out[0] = 7 / out[0];", FaultKind.ARITHMETIC),
        (
            "float local[8000]; for (int i = 0; i < 8000; ++i) local[i * 3 % 8000] = i; out[0] = local[5] + local[70];",
            None,
        ),
        (
            "float local[80000]; for (int i = 79999; i > 0; --i) local[i] = i; out[0] = local[5];",
            FaultKind.OUT_OF_BOUNDS,
        ),
    ],
    ids=["trap", "assert", "division by zero", "32 KB of local memory", "320 KB of local memory"],
)
def test_event_inside_of_a_kernel_becomes_a_fault(body: str, kind: FaultKind | None, tmp_path: Path) -> None:
    _, buffer = guarded_array((1,), np.int32, name="out", fill=0)
    faults = run_kernel(write_kernel(tmp_path, body, "int* out"), buffer, threads=1, build=Build.FAST).faults
    assert [fault.kind for fault in faults] == ([] if kind is None else [kind])


@pytest.mark.parametrize(
    "body",
    [
        "int big = 0x7fffffff; big += out[0] + 1; out[0] = big;",
        "out[0] = (int)(1e20f + out[0]);",
        "out[0] = 1 << (out[0] + 40);",
    ],
    ids=["overflow", "conversion", "shift"],
)
def test_undefined_arithmetic_is_reported_by_the_checked_build(body: str, tmp_path: Path) -> None:
    _, buffer = guarded_array((1,), np.int32, name="out", fill=0)
    (fault,) = run_kernel(write_kernel(tmp_path, body, "int* out"), buffer, threads=1).faults
    assert (fault.kind, fault.line) == (FaultKind.ARITHMETIC, 3)


def test_index_outside_of_a_local_array_is_reported_by_the_checked_build(tmp_path: Path) -> None:
    _, buffer = guarded_array((1,), np.int32, name="out", fill=8)
    body = "int local[8];\nfor (int i = 0; i < 8; ++i) local[i] = i;\nout[0] = local[out[0]];"
    faults = run_kernel(write_kernel(tmp_path, body, "int* out"), buffer, threads=1).faults
    assert (FaultKind.OUT_OF_BOUNDS, 5) in [(fault.kind, fault.line) for fault in faults]


def test_signal_handlers_are_restored_after_a_launch(tmp_path: Path) -> None:
    _, buffer = guarded_array((1,), np.int32, name="out", fill=0)
    before = [signal.getsignal(number) for number in (signal.SIGSEGV, signal.SIGFPE)]
    run_kernel(write_kernel(tmp_path, "out[1 << 20] = 0;", "int* out"), buffer)
    assert [signal.getsignal(number) for number in (signal.SIGSEGV, signal.SIGFPE)] == before


def test_static_shared_memory_is_refused_with_its_line(tmp_path: Path) -> None:
    source = write_kernel(tmp_path, "// __shared__ in a comment is fine\n__shared__ float s[4];")
    with pytest.raises(ValueError, match=r"kernel\.cu:4: static __shared__ is not supported"):
        compile_module(source, entries=["kernel"])


def test_source_that_does_not_compile_is_refused_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=r"kernel\.cu:3"):
        compile_module(write_kernel(tmp_path, "undeclared = 1;"), entries=["kernel"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"entry": "other"}, "entry='other' was not compiled"),
        ({"grid": (0, 1, 1)}, r"grid=\(0, 1, 1\)"),
        ({"block": (32, 33, 1)}, "1056 threads"),
        ({"shared_bytes": 1 << 20}, "shared_bytes=1048576, expected 0..232448"),
        ({"args": []}, "has 0 values, expected 1"),
        ({"args": [np.int32(3)]}, r"args\[0\] of kernel has 4 bytes, expected 8"),
        ({"args": [np.zeros(2)]}, r"array of shape \(2,\)"),
    ],
)
def test_impossible_launch_is_refused(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    module = compile_module(write_kernel(tmp_path, ""), entries=["kernel"])
    launch = {"entry": "kernel", "grid": (1, 1, 1), "block": (32, 1, 1), "shared_bytes": 0, "args": [8], "buffers": []}
    with pytest.raises(ValueError, match=message):
        module.launch(**(launch | changes))  # type: ignore[arg-type]
