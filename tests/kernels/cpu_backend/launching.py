"""Shared by the tests: the tile kernel's launch, and one-off kernels given as text."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from kernels.cpu_backend import (
    FIFO,
    REVERSED,
    Buffer,
    Build,
    LaunchReport,
    MmaModel,
    Schedule,
    compile_module,
    guarded_array,
    random,
)

HERE = Path(__file__).parent
TILE_PRODUCT = HERE / "tile_product.cu"
DIM, ROWS, KEYS = 32, 64, 32
SHARED_BYTES = 2 * KEYS * DIM * 2 + ROWS * KEYS * 4
SCHEDULES = {"fifo": FIFO, "reversed": REVERSED, "random": random(3)}

PRODUCT = np.dtype(
    [(name, np.uint64) for name in ("q", "k", "out", "total")] + [("rows", np.int32), ("keys", np.int32)], align=True
)


@dataclasses.dataclass(frozen=True)
class TileProduct:
    """Result of a launch of the tile kernel, and what it should be."""

    report: LaunchReport
    out: np.ndarray
    total: float
    expected: np.ndarray


def run_tile_product(
    source: Path = TILE_PRODUCT, *, size: int = 100, build: Build = Build.CHECKED, schedule: Schedule = FIFO
) -> TileProduct:
    """Launch with `size` rows and keys of values in {-1, 0, 1}, so that every sum is exact in fp32."""
    rng = np.random.default_rng(size)
    q, k = (rng.integers(-1, 2, size=(size, DIM)) for _ in range(2))
    arrays = {
        "q": guarded_array(q.shape, np.float16, name="q", fill=q, writable=False),
        "k": guarded_array(k.shape, np.float16, name="k", fill=k, writable=False),
        "out": guarded_array(q.shape, np.float32, name="out"),
        "total": guarded_array((1,), np.float32, name="total", fill=0.0),
    }
    argument = np.zeros((), PRODUCT)
    for name, (_, buffer) in arrays.items():
        argument[name] = buffer.address
    argument["rows"] = argument["keys"] = size
    module = compile_module(source, entries=["tile_product"], build=build)
    report = module.launch(
        "tile_product",
        grid=(-(-size // ROWS), 1, 1),
        block=(128, 1, 1),
        shared_bytes=SHARED_BYTES,
        args=[argument],
        buffers=[buffer for _, buffer in arrays.values()],
        schedule=schedule,
    )
    return TileProduct(report, arrays["out"][0], float(arrays["total"][0][0]), (q @ k.T) @ k)


def write_kernel(folder: Path, body: str, parameters: str = "float* out") -> Path:
    """A source with one kernel, ``kernel(parameters)``, whose body starts at line 3."""
    source = folder / "kernel.cu"
    source.write_text(f'#include "ptx.cuh"\nextern "C" __global__ void kernel({parameters}) {{\n{body}\n}}\n')
    return source


def run_kernel(
    source: Path,
    *buffers: Buffer,
    threads: int = 32,
    blocks: int = 1,
    shared_bytes: int = 0,
    build: Build = Build.CHECKED,
    schedule: Schedule = FIFO,
    mma: MmaModel = MmaModel.HOPPER,
    time_limit_s: float = 20.0,
) -> LaunchReport:
    """Launch ``kernel`` of `source` with the buffers' addresses as its arguments."""
    return compile_module(source, entries=["kernel"], build=build).launch(
        "kernel",
        grid=(blocks, 1, 1),
        block=(threads, 1, 1),
        shared_bytes=shared_bytes,
        args=[buffer.address for buffer in buffers],
        buffers=buffers,
        schedule=schedule,
        mma=mma,
        time_limit_s=time_limit_s,
    )
