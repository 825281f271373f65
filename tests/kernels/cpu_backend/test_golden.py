"""The CPU's warp-level instructions against what a GPU returned (benchmarks/golden_vectors.py)."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from benchmarks.golden_vectors import CUDA_DIR, KERNELS, SHARED_BYTES, SOURCE, Words, record
from kernels.backend import Module
from kernels.cpu_backend import Build, MmaModel, compile_module, guarded_array
from kernels.cubin import compile_cubin

GOLDEN = Path(__file__).parent / "golden_h200.npz"
EXACT = sorted(set(KERNELS) - {"exp2_sweep"})

recorded = pytest.mark.skipif(not GOLDEN.exists(), reason=f"{GOLDEN.name} has not been recorded on a GPU")


def launch(name: str, words: Words, out_words: int, build: Build = Build.FAST) -> Words:
    module = compile_module(SOURCE, entries=[f"golden_{kernel}" for kernel in KERNELS], build=build)
    _, given = guarded_array(words.shape, np.uint32, name="in", fill=words, writable=False)
    out, result = guarded_array((len(words), 32, out_words), np.uint32, name="out")
    report = module.launch(
        f"golden_{name}",
        grid=(len(words), 1, 1),
        block=(32, 1, 1),
        shared_bytes=SHARED_BYTES,
        args=[given.address, result.address],
        buffers=[given, result],
        mma=MmaModel.HOPPER,
    )
    assert report.faults == ()
    return out


@recorded
@pytest.mark.parametrize("name", EXACT)
def test_instruction_equals_the_recorded_gpu_bit_for_bit(name: str) -> None:
    golden = np.load(GOLDEN)
    got, expected = launch(name, golden[f"{name}_in"], KERNELS[name].out_words), golden[f"{name}_out"]
    different = np.argwhere(got != expected)
    assert len(different) == 0, f"{len(different)} of {got.size} words differ, the first at {different[0]}"


@recorded
def test_exp2_differs_from_the_recorded_gpu_by_no_more_than_both_errors() -> None:
    """PTX ISA: ex2.approx has a relative error of at most 2^-22; the host's exp2f is within one ulp, 2^-23.

    At the smallest normal number one side may be flushed to zero while the other is not.
    """
    golden = np.load(GOLDEN)
    got = launch("exp2_sweep", golden["exp2_sweep_in"], 1).view(np.float32).astype(np.float64)
    expected = golden["exp2_sweep_out"].view(np.float32).astype(np.float64)
    finite = np.isfinite(expected)
    assert np.array_equal(got[~finite], expected[~finite], equal_nan=True)
    got, expected = got[finite], expected[finite]
    largest = np.maximum(got, expected)
    flushed = np.where(largest <= 2.0**-126 * (1 + 2.0**-21), 2.0**-126, 0.0)
    assert (np.abs(got - expected) <= (2.0**-22 + 2.0**-23) * largest + flushed).all()


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_every_instruction_compiles_for_a_gpu(arch: str, tmp_path: Path) -> None:
    pytest.importorskip("cupy", reason="NVRTC is reached through CuPy")
    for file in (SOURCE, CUDA_DIR / "ptx.cuh"):  # the include directory is that of the source
        shutil.copy(file, tmp_path)
    entries = tuple(f"golden_{name}" for name in KERNELS)
    assert set(compile_cubin(Module(source=tmp_path / SOURCE.name, entries=entries), arch).usage) == set(entries)


def test_every_golden_kernel_runs_checked_without_a_fault() -> None:
    outputs = record(lambda name, words, out_words: launch(name, words, out_words, Build.CHECKED))
    assert {name.removesuffix("_out") for name in outputs if name.endswith("_out")} == set(KERNELS)
