"""Global and shared memory: guard pages, poison, races between blocks, asynchronous copies."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from kernels.cpu_backend import REVERSED, SHARED_MEMORY, Build, Fault, FaultKind, guarded_array, random
from tests.kernels.cpu_backend.launching import run_kernel, write_kernel


def only_fault(faults: tuple[Fault, ...]) -> tuple[FaultKind, int | None, str | None, int | None]:
    (fault,) = faults
    return fault.kind, fault.line, fault.buffer, fault.offset


@pytest.mark.parametrize("build", [Build.FAST, Build.CHECKED])
@pytest.mark.parametrize(("align_end", "index", "offset"), [(True, 32, 128), (False, -1, -4)])
def test_access_outside_of_a_buffer_is_reported(
    align_end: bool, index: int, offset: int, build: Build, tmp_path: Path
) -> None:
    _, buffer = guarded_array((32,), np.float32, name="out", align_end=align_end)
    faults = run_kernel(write_kernel(tmp_path, f"out[{index}] = 1.0f;"), buffer, build=build).faults
    assert only_fault(faults) == (FaultKind.OUT_OF_BOUNDS, 3, "out", offset)


def test_slack_inside_of_the_last_page_is_out_of_bounds_in_the_checked_build(tmp_path: Path) -> None:
    _, buffer = guarded_array((3,), np.uint16, name="out")
    faults = run_kernel(write_kernel(tmp_path, "out[3] = 1;", "unsigned short* out"), buffer).faults
    assert only_fault(faults) == (FaultKind.OUT_OF_BOUNDS, 3, "out", 6)


@pytest.mark.parametrize(("align_end", "index"), [(True, 3), (False, 3), (True, -1)])
def test_write_into_the_slack_is_noticed_without_instrumentation(align_end: bool, index: int, tmp_path: Path) -> None:
    _, buffer = guarded_array((3,), np.uint16, name="out", align_end=align_end)
    source = write_kernel(tmp_path, f"out[{index}] = 1;", "unsigned short* out")
    faults = run_kernel(source, buffer, build=Build.FAST).faults
    assert only_fault(faults) == (FaultKind.OUT_OF_BOUNDS, None, "out", 2 * index)
    assert run_kernel(write_kernel(tmp_path, "", "unsigned short* out"), buffer, build=Build.FAST).faults == ()


def test_unregistered_memory_is_out_of_bounds_in_the_checked_build(tmp_path: Path) -> None:
    hidden = np.zeros(4, np.float32)
    _, buffer = guarded_array((1,), np.uint64, name="out", fill=hidden.ctypes.data)
    (fault,) = run_kernel(write_kernel(tmp_path, "**out = 1.0f;", "float** out"), buffer).faults
    assert (fault.kind, fault.line) == (FaultKind.OUT_OF_BOUNDS, 3)


@pytest.mark.parametrize("build", [Build.FAST, Build.CHECKED])
def test_null_pointer_is_a_fault_and_the_process_survives(build: Build, tmp_path: Path) -> None:
    _, buffer = guarded_array((1,), np.uint64, name="out", fill=0)
    (fault,) = run_kernel(write_kernel(tmp_path, "**out = 1.0f;", "float** out"), buffer, build=build).faults
    assert (fault.kind, fault.line) == (FaultKind.OUT_OF_BOUNDS, 3)


def test_reading_an_output_before_it_is_written_is_reported(tmp_path: Path) -> None:
    _, buffer = guarded_array((32,), np.float32, name="out")
    faults = run_kernel(write_kernel(tmp_path, "out[threadIdx.x] += 1.0f;"), buffer, threads=1).faults
    assert only_fault(faults) == (FaultKind.UNINITIALISED, 3, "out", 0)


def test_shared_memory_of_the_block_before_is_not_readable(tmp_path: Path) -> None:
    out, buffer = guarded_array((2,), np.float32, name="out")
    body = """
    DYN_SMEM(raw);
    float* shared = (float*)raw;
    if (blockIdx.x == 0) shared[0] = 7.0f;
    out[blockIdx.x] = shared[0];
    """
    faults = run_kernel(write_kernel(tmp_path, body), buffer, threads=1, blocks=2, shared_bytes=4).faults
    assert only_fault(faults) == (FaultKind.UNINITIALISED, 7, SHARED_MEMORY, 0)
    assert np.isnan(out[1])


def test_scalar_that_is_never_set_is_found_by_the_compiler(tmp_path: Path) -> None:
    _, buffer = guarded_array((32,), np.float32, name="out")
    (fault,) = run_kernel(write_kernel(tmp_path, "float x;\nout[threadIdx.x] = x + 1.0f;"), buffer).faults
    assert (fault.kind, fault.line, fault.block) == (FaultKind.UNINITIALISED, 4, None)


def test_checked_launch_starts_from_the_memory_that_it_was_given(tmp_path: Path) -> None:
    out, buffer = guarded_array((1,), np.float32, name="out", fill=5.0)
    assert run_kernel(write_kernel(tmp_path, "atomicAdd(out, 1.0f);"), buffer).faults == ()
    assert out[0] == 37.0


def test_every_access_is_counted(tmp_path: Path) -> None:
    _, given = guarded_array((32,), np.float16, name="given", fill=1.0, writable=False)
    _, out = guarded_array((32,), np.float32, name="out")
    source = write_kernel(
        tmp_path, "out[threadIdx.x] = __half2float(given[threadIdx.x]);", "const __half* given, float* out"
    )
    assert run_kernel(source, given, out).checked_accesses == 64


FENCED = """
__shared_last = 0;
if (threadIdx.x == 0) {
    partial[blockIdx.x] = blockIdx.x + 1.0f;
    FENCE
    if (atomicAdd(counter, 1u) == gridDim.x - 1) {
        float sum = 0.0f;
        for (int i = 0; i < gridDim.x; ++i) sum += partial[i];
        out[0] = sum;
    }
}
""".replace("__shared_last = 0;\n", "")


@pytest.mark.parametrize("schedule", [REVERSED, random(1)])
@pytest.mark.parametrize(("fence", "kinds"), [("__threadfence();", set()), ("", {FaultKind.RACE})])
def test_last_block_may_read_the_others_results_only_after_a_fence(
    fence: str, kinds: set[FaultKind], schedule: object, tmp_path: Path
) -> None:
    _, partial = guarded_array((4,), np.float32, name="partial")
    _, counter = guarded_array((1,), np.uint32, name="counter", fill=0)
    out, result = guarded_array((1,), np.float32, name="out")
    source = write_kernel(tmp_path, FENCED.replace("FENCE", fence), "float* partial, unsigned* counter, float* out")
    report = run_kernel(source, partial, counter, result, blocks=4, schedule=schedule)  # type: ignore[arg-type]
    assert {fault.kind for fault in report.faults} == kinds
    assert out[0] == 10.0


def test_plain_read_of_an_atomically_updated_value_is_a_race(tmp_path: Path) -> None:
    _, buffer = guarded_array((1,), np.float32, name="out", fill=0.0)
    body = "if (threadIdx.x < 31)\natomicAdd(out, 1.0f);\nelse if (*out > 50.0f)\n__trap();"
    (fault,) = run_kernel(write_kernel(tmp_path, body), buffer).faults
    assert (fault.kind, {fault.line, fault.other_line}) == (FaultKind.RACE, {4, 5})


@pytest.mark.parametrize("size", [4, 8, 16])
def test_asynchronous_copy_arrives_at_the_wait_and_not_before(size: int, tmp_path: Path) -> None:
    given, source_buffer = guarded_array(
        (3, size), np.uint8, name="given", fill=np.arange(1, 3 * size + 1).reshape(3, -1)
    )
    out, buffer = guarded_array((2, 3, size), np.uint8, name="out")
    body = f"""
    DYN_SMEM(raw);
    for (int i = 0; i < 3; ++i) {{
        cp_async<{size}>(shared_address(raw) + i * {size}, given + i * {size}, i != 2);
        cp_async_commit();
    }}
    cp_async_wait<2>();
    for (int i = 0; i < 3 * {size}; ++i) out[i] = raw[i];
    cp_async_wait<0>();
    for (int i = 0; i < 3 * {size}; ++i) out[3 * {size} + i] = raw[i];
    """
    source = write_kernel(tmp_path, body, "const unsigned char* given, unsigned char* out")
    run_kernel(source, source_buffer, buffer, threads=1, shared_bytes=3 * size, build=Build.FAST)
    assert np.array_equal(out[0], np.stack([given[0], np.full(size, 0xFF), np.full(size, 0xFF)]))
    assert np.array_equal(out[1], np.stack([given[0], given[1], np.zeros(size)]))


@pytest.mark.parametrize(
    ("body", "kind", "line"),
    [
        ("cp_async<16>(0, given);\ncp_async_commit();", FaultKind.IN_FLIGHT_COPY, 3),
        ("cp_async<16>(0, given + 1);", FaultKind.MISALIGNED, 3),
        ("cp_async<8>(4, given);", FaultKind.MISALIGNED, 3),
    ],
    ids=["never waited for", "misaligned source", "misaligned destination"],
)
def test_misused_asynchronous_copy_is_reported(body: str, kind: FaultKind, line: int, tmp_path: Path) -> None:
    _, given = guarded_array((32,), np.float32, name="given", fill=1.0, writable=False)
    source = write_kernel(tmp_path, body, "const float* given")
    faults = run_kernel(source, given, threads=1, shared_bytes=64, build=Build.FAST).faults
    assert [(fault.kind, fault.line) for fault in faults] == [(kind, line)]


def test_empty_buffer_may_be_passed_but_not_read(tmp_path: Path) -> None:
    array, buffer = guarded_array((0, 4), np.float32, name="out")
    assert array.size == 0
    assert run_kernel(write_kernel(tmp_path, "if (out == nullptr) __trap();"), buffer).faults == ()
    (fault,) = run_kernel(write_kernel(tmp_path, "out[0] = 1.0f;"), buffer).faults
    assert (fault.kind, fault.buffer, fault.offset) == (FaultKind.OUT_OF_BOUNDS, "out", 0)


def test_guarded_array_is_poisoned_around_and_inside() -> None:
    array, buffer = guarded_array((5,), np.float32, name="x")
    assert np.isnan(array).all()
    assert ctypes.string_at(buffer.address + 20, 12) == b"\xff" * 12
    assert not buffer.initialised
