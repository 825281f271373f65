"""Every seeded fault of the tile kernel is reported at the right line, and the correct kernel is silent."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from kernels.cpu_backend import SHARED_MEMORY, Build, Fault, FaultKind
from tests.kernels.cpu_backend.launching import SCHEDULES, TILE_PRODUCT, run_tile_product


@dataclasses.dataclass(frozen=True)
class Seeded:
    """A fault put into the tile kernel: on the line with a label, a text becomes another."""

    label: str
    old: str
    new: str
    kind: FaultKind
    at: tuple[str, ...]
    """Labels of the lines that the report may name."""
    buffer: str | None = None


SEEDED = {
    "no barrier after a tile load": Seeded(
        "ready", "__syncthreads();", ";", FaultKind.RACE, ("copy", "dot", "accumulate"), SHARED_MEMORY
    ),
    "no barrier before a tile is overwritten": Seeded(
        "reuse", "__syncthreads();", ";", FaultKind.RACE, ("copy", "dot", "accumulate"), SHARED_MEMORY
    ),
    "no __syncwarp between the lanes of a row": Seeded(
        "paired", "__syncwarp();", ";", FaultKind.RACE, ("store_product", "accumulate"), SHARED_MEMORY
    ),
    "wait_group one too large": Seeded(
        "wait", "cp_async_wait<1>", "cp_async_wait<2>", FaultKind.IN_FLIGHT_COPY, ("dot",), SHARED_MEMORY
    ),
    "tail row read past the end": Seeded("tail", "row < keys", "row <= keys", FaultKind.OUT_OF_BOUNDS, ("copy",), "k"),
    "out written past the end": Seeded(
        "store", "p.out[global_row", "p.out[(global_row + 1)", FaultKind.OUT_OF_BOUNDS, ("store",), "out"
    ),
    "shared index one past the end": Seeded(
        "store_product",
        "[row * KEYS + j]",
        "[row * KEYS + j + (row == ROWS - 1)]",
        FaultKind.OUT_OF_BOUNDS,
        ("store_product",),
        SHARED_MEMORY,
    ),
    "accumulator not initialised": Seeded(
        "clear", "accumulator[i] = 0.0f", "", FaultKind.UNINITIALISED, ("accumulate",)
    ),
    "early return before a barrier": Seeded(
        "before_loop", "//", "if (!valid) return;  //", FaultKind.BARRIER_DIVERGENCE, ("ready",)
    ),
    "half of the block skips a barrier": Seeded(
        "reuse", "__syncthreads();", "if (row < 32) __syncthreads();", FaultKind.BARRIER_DIVERGENCE, ("reuse", "ready")
    ),
    "two blocks add to one address without atomics": Seeded(
        "total", "atomicAdd(p.total, sum)", "*p.total += sum", FaultKind.RACE, ("total",), "total"
    ),
    "write to a const input": Seeded(
        "store",
        "p.out[global_row * DIM + half * DIM / 2 + i]",
        "((float*)p.q)[i]",
        FaultKind.READ_ONLY_WRITE,
        ("store",),
        "q",
    ),
    "misaligned 16-byte load": Seeded(
        "load_q", "global_row * DIM + i)", "global_row * DIM + i + (i == 0))", FaultKind.MISALIGNED, ("load_q",)
    ),
}


def line_of(label: str, text: str) -> int:
    """Number of the only line that ends in a label."""
    numbers = [number for number, line in enumerate(text.splitlines(), 1) if line.endswith(f"// @{label}")]
    assert len(numbers) == 1, f"{label} labels the lines {numbers}"
    return numbers[0]


@pytest.fixture(scope="module")
def broken_sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The tile kernel with each of the faults in it."""
    return {name: write_broken(seeded, tmp_path_factory.mktemp("broken")) for name, seeded in SEEDED.items()}


def write_broken(seeded: Seeded, folder: Path) -> Path:
    """The tile kernel with one fault in it."""
    lines = TILE_PRODUCT.read_text().splitlines()
    index = line_of(seeded.label, TILE_PRODUCT.read_text()) - 1
    assert lines[index].count(seeded.old) == 1
    lines[index] = lines[index].replace(seeded.old, seeded.new)
    source = folder / "broken.cu"
    source.write_text("\n".join(lines) + "\n")
    return source


def names_the_place(fault: Fault, seeded: Seeded) -> bool:
    """Whether a fault has the seeded kind and names one of the lines that take part."""
    lines = {line_of(label, TILE_PRODUCT.read_text()) for label in seeded.at}
    known_memory = seeded.buffer is None or fault.buffer == seeded.buffer
    return fault.kind is seeded.kind and fault.line in lines and known_memory


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", SEEDED)
def test_seeded_fault_is_reported_at_its_line(name: str, schedule: str, broken_sources: dict[str, Path]) -> None:
    seeded = SEEDED[name]
    faults = run_tile_product(broken_sources[name], schedule=SCHEDULES[schedule]).report.faults
    assert any(names_the_place(fault, seeded) for fault in faults), [str(fault) for fault in faults]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("size", [1, 64, 100, 128])
@pytest.mark.parametrize("build", Build)
def test_correct_kernel_is_exact_and_silent(build: Build, size: int, schedule: str) -> None:
    result = run_tile_product(size=size, build=build, schedule=SCHEDULES[schedule])
    assert result.report.faults == ()
    assert np.array_equal(result.out, result.expected)
    assert result.total == result.expected.sum()


@pytest.mark.parametrize("name", ["tail row read past the end", "out written past the end"])
def test_guard_page_reports_the_same_place_without_instrumentation(name: str, broken_sources: dict[str, Path]) -> None:
    seeded = SEEDED[name]
    faults = run_tile_product(broken_sources[name], build=Build.FAST).report.faults
    assert any(names_the_place(fault, seeded) for fault in faults), [str(fault) for fault in faults]


def test_copy_that_is_waited_for_too_late_gives_nan_without_instrumentation(broken_sources: dict[str, Path]) -> None:
    source = broken_sources["wait_group one too large"]
    assert np.isnan(run_tile_product(source, build=Build.FAST).out).any()


@pytest.mark.parametrize("schedule", ["reversed", "random"])
def test_missing_barrier_changes_the_result_under_another_schedule(
    schedule: str, broken_sources: dict[str, Path]
) -> None:
    source = broken_sources["no barrier before a tile is overwritten"]
    result = run_tile_product(source, size=128, build=Build.FAST, schedule=SCHEDULES[schedule])
    assert not np.array_equal(result.out, result.expected)
