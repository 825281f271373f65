"""Records what a GPU's warp-level instructions return, for the comparison of the CPU backend with the hardware.

Run once on a GPU: ``python benchmarks/golden_vectors.py tests/kernels/cpu_backend/golden_h200.npz``. The file holds,
for each kernel ``golden_NAME`` of tests/kernels/cpu_backend/golden.cu, ``NAME_in`` and ``NAME_out`` (uint32, axes:
item, lane, word), and the device's name and compute capability.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "tests" / "kernels" / "cpu_backend" / "golden.cu"
CUDA_DIR = ROOT / "kernels" / "cuda"
SHARED_BYTES = 1024
SEED = 20260801

Words = npt.NDArray[np.uint32]
Launch = Callable[[str, Words, int], Words]
"""(kernel, input words (item, lane, word), output words a lane) -> output words (item, lane, word)."""


@dataclasses.dataclass(frozen=True, slots=True)
class GoldenKernel:
    """A kernel of golden.cu: how many words a lane writes, and the inputs to record."""

    out_words: int
    make_inputs: Callable[[np.random.Generator], Words]


def _ldmatrix_inputs(rng: np.random.Generator) -> Words:
    """Distinct 16-bit elements in shared memory, row addresses in random order with repeats."""
    items = 4
    elements = np.stack([rng.permutation(512).astype(np.uint16) + 512 * item for item in range(items)])
    words = elements.astype(np.uint16).view(np.uint32).reshape(items, 32, 8)
    rows = rng.integers(0, 64, size=(items, 32, 1), dtype=np.uint32) * 16
    return np.concatenate([words, rows], axis=-1)


def _wide(rng: np.random.Generator, shape: tuple[int, ...], dtype: npt.DTypeLike, spread: int) -> np.ndarray:
    """Values with random signs, significands in [1, 2) and exponents in [-spread, spread], rounded to `dtype`."""
    exponents = rng.integers(-spread, spread + 1, size=shape)
    magnitudes = np.ldexp(rng.uniform(1.0, 2.0, size=shape), exponents)
    return np.where(rng.random(shape) < 0.5, -magnitudes, magnitudes).astype(np.float32).astype(dtype)


def _mma_inputs(rng: np.random.Generator, dtype: npt.DTypeLike) -> Words:
    """Operands of widening exponent ranges; the last items hold zeros, subnormals, infinities and NaNs as well."""
    itemsize = np.dtype(dtype).itemsize
    spreads = [0, 1, 2, 3, 5, 7, 9, 12] * 3
    items = []
    for index, spread in enumerate([*spreads, 4, 4, 4, 4]):
        operands = _wide(rng, (32, 6 * 4 // itemsize), dtype, spread)
        accumulators = _wide(rng, (32, 4), np.float32, 2 * spread)
        if index >= len(spreads):
            special = np.array([0.0, -0.0, 6e-8, -3e-6, 1e-39, np.inf, -np.inf, np.nan], np.float32)
            chosen = rng.random(operands.shape) < 0.05
            operands = np.where(chosen, rng.choice(special.astype(dtype), operands.shape), operands)
            chosen = rng.random(accumulators.shape) < 0.1
            accumulators = np.where(chosen, rng.choice(special, accumulators.shape), accumulators)
        packed = np.ascontiguousarray(operands).view(np.uint32)
        items.append(np.concatenate([packed, accumulators.view(np.uint32)], axis=-1))
    return np.stack(items)


def _shuffle_inputs(rng: np.random.Generator) -> Words:
    """Distinct values; lane operands uniform a warp (0, 1, 31, 32, 33), the lane's own index, and random a lane."""
    uniform = [np.full(32, operand) for operand in (0, 1, 5, 15, 16, 31, 32, 33)]
    operands = np.stack([*uniform, np.arange(32), *rng.integers(0, 64, size=(7, 32))]).astype(np.uint32)
    values = rng.permutation(operands.size).astype(np.uint32).reshape(operands.shape)
    return np.stack([values, operands], axis=-1)


def _vote_inputs(rng: np.random.Generator) -> Words:
    constant = [np.full(32, value) for value in (0, 3, 0xFFFFFFFF)]
    small = rng.integers(0, 4, size=(6, 32))
    wide = rng.integers(0, 1 << 32, size=(3, 32))
    return np.stack([*constant, *small, *wide]).astype(np.uint32)[..., None]


def _exp2_inputs(rng: np.random.Generator) -> Words:
    """From underflow to overflow, denser near zero, and the special values."""
    sweep = np.linspace(-150.0, 130.0, 32 * 96)
    near_zero = rng.standard_normal(32 * 30) * 2.0 ** rng.integers(-30, 1, size=32 * 30)
    special = np.resize([0.0, -0.0, 1e-40, -1e-40, np.inf, -np.inf, np.nan, -126.0, -126.5, 127.99999, 128.0], 64)
    return np.concatenate([sweep, near_zero, special]).astype(np.float32).view(np.uint32).reshape(-1, 32, 1)


def _random_16_bit(rng: np.random.Generator) -> Words:
    """Triples of random patterns, and triples whose sum is close to halfway between two values."""
    random = rng.integers(0, 1 << 16, size=(64, 32, 3), dtype=np.uint32)
    near = rng.integers(0x3C00, 0x4400, size=(64, 32, 3), dtype=np.uint32)
    return np.concatenate([random, near])


def _random_floats(rng: np.random.Generator) -> Words:
    """Random patterns, and patterns around every tie of fp16 and bf16 near 1."""
    random = rng.integers(0, 1 << 32, size=32 * 96, dtype=np.uint32)
    ties = (0x3F800000 + (np.arange(32 * 32, dtype=np.uint32) << 12)) + rng.integers(0, 3, 32 * 32, dtype=np.uint32) - 1
    return np.concatenate([random, ties]).astype(np.uint32).reshape(-1, 32, 1)


KERNELS: dict[str, GoldenKernel] = {
    "ldmatrix_x1": GoldenKernel(1, _ldmatrix_inputs),
    "ldmatrix_x2": GoldenKernel(2, _ldmatrix_inputs),
    "ldmatrix_x4": GoldenKernel(4, _ldmatrix_inputs),
    "ldmatrix_x1_trans": GoldenKernel(1, _ldmatrix_inputs),
    "ldmatrix_x2_trans": GoldenKernel(2, _ldmatrix_inputs),
    "ldmatrix_x4_trans": GoldenKernel(4, _ldmatrix_inputs),
    "mma_fp16": GoldenKernel(4, lambda rng: _mma_inputs(rng, np.float16)),
    "mma_bf16": GoldenKernel(4, lambda rng: _mma_inputs(rng, ml_dtypes.bfloat16)),
    "mma_tf32": GoldenKernel(4, lambda rng: _mma_inputs(rng, np.float32)),
    "shuffles": GoldenKernel(24, _shuffle_inputs),
    "votes": GoldenKernel(10, _vote_inputs),
    "exp2_sweep": GoldenKernel(1, _exp2_inputs),
    "fma_16_bit": GoldenKernel(2, _random_16_bit),
    "round_to_16_bit": GoldenKernel(2, _random_floats),
}


def record(launch: Launch) -> dict[str, Words]:
    """Inputs and outputs of every kernel, keyed ``NAME_in`` and ``NAME_out``."""
    recorded: dict[str, Words] = {}
    for index, (name, kernel) in enumerate(KERNELS.items()):
        words = kernel.make_inputs(np.random.Generator(np.random.PCG64([SEED, index])))
        recorded[f"{name}_in"] = words
        recorded[f"{name}_out"] = launch(name, words, kernel.out_words)
    return recorded


def gpu_launcher() -> tuple[Launch, dict[str, np.ndarray]]:
    """Launcher on the current CUDA device, and what the device is."""
    import cupy

    from kernels.cpu_backend.toolchain import cuda_include_dir

    device = cupy.cuda.Device()
    capability = device.compute_capability
    options = (f"-arch=sm_{capability}", "-std=c++17", f"-I{CUDA_DIR}", f"-I{cuda_include_dir()}")
    module = cupy.RawModule(code=SOURCE.read_text(), options=options, backend="nvrtc")

    def launch(name: str, words: Words, out_words: int) -> Words:
        items = words.shape[0]
        given = cupy.asarray(words)
        result = cupy.zeros((items, 32, out_words), cupy.uint32)
        module.get_function(f"golden_{name}")((items,), (32,), (given, result), shared_mem=SHARED_BYTES)
        return np.asarray(cupy.asnumpy(result))

    name = cupy.cuda.runtime.getDeviceProperties(device.id)["name"].decode()
    return launch, {"device": np.array(name), "compute_capability": np.array(capability)}


def main() -> None:
    """Record on the current GPU and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=Path, help="the .npz file to write")
    target: Path = parser.parse_args().target
    launch, device = gpu_launcher()
    np.savez_compressed(target, allow_pickle=False, **device, **record(launch))
    print(f"{target}: {len(KERNELS)} kernels recorded on {device['device']}, {target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
