"""ldmatrix layouts, and tensor-core arithmetic on cases whose result follows from the rule by hand."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from kernels.cpu_backend import Build, FaultKind, MmaModel, guarded_array
from tests.kernels.cpu_backend.launching import run_kernel, write_kernel

IDEAL, AMPERE, HOPPER = MmaModel.IDEAL, MmaModel.AMPERE, MmaModel.HOPPER


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_ldmatrix_hands_each_lane_its_pair(count: int, transposed: bool, tmp_path: Path) -> None:
    suffix = "_trans" if transposed else ""
    body = f"""
    DYN_SMEM(raw);
    for (int i = 0; i < 8; ++i) ((unsigned short*)raw)[threadIdx.x * 8 + i] = threadIdx.x * 8 + i;
    __syncwarp();
    unsigned r[{count}];
    ldmatrix_x{count}{suffix}(r, shared_address(raw) + threadIdx.x * 16);
    for (int i = 0; i < {count}; ++i) out[threadIdx.x * {count} + i] = r[i];
    """
    out, buffer = guarded_array((32, count), np.uint32, name="out")
    assert run_kernel(write_kernel(tmp_path, body, "unsigned* out"), buffer, shared_bytes=512).faults == ()
    matrices = np.arange(256, dtype=np.uint32).reshape(4, 8, 8)[:count]
    pairs = (matrices.swapaxes(1, 2) if transposed else matrices).reshape(count, 32, 2)
    assert np.array_equal(out.T, pairs[..., 0] | pairs[..., 1] << 16)


@pytest.mark.parametrize(
    ("address", "kind"), [("8", FaultKind.MISALIGNED), ("512", FaultKind.OUT_OF_BOUNDS)], ids=["misaligned", "outside"]
)
def test_bad_ldmatrix_row_is_reported(address: str, kind: FaultKind, tmp_path: Path) -> None:
    _, buffer = guarded_array((1,), np.uint32, name="out", fill=0)
    source = write_kernel(tmp_path, f"unsigned r[1];\nldmatrix_x1(r, {address});", "unsigned* out")
    (fault,) = run_kernel(source, buffer, shared_bytes=512, build=Build.FAST).faults
    assert (fault.kind, fault.line) == (kind, 4)


MMA = """
unsigned a[4], b[2];
float d[4];
int t = threadIdx.x;
for (int i = 0; i < 4; ++i) a[i] = operands[t * 6 + i];
for (int i = 0; i < 2; ++i) b[i] = operands[t * 6 + 4 + i];
for (int i = 0; i < 4; ++i) d[i] = out[t * 4 + i];
INSTRUCTION(d, a, b);
for (int i = 0; i < 4; ++i) out[t * 4 + i] = d[i];
"""
INSTRUCTIONS = {
    np.dtype(np.float16): "mma_m16n8k16<__half>",
    np.dtype(ml_dtypes.bfloat16): "mma_m16n8k16<__nv_bfloat16>",
    np.dtype(np.float32): "mma_m16n8k8_tf32",
}


def mma(a: np.ndarray, b: np.ndarray, c: np.ndarray, model: MmaModel, folder: Path) -> np.ndarray:
    """a (16, k) times b (k, 8) plus c (16, 8), through the instruction's fragment layout."""
    per_word = 4 // a.dtype.itemsize
    lane = np.arange(32)
    group, first = lane // 4, lane % 4 * per_word
    half_k = 4 * per_word
    words = np.zeros((32, 6, per_word), a.dtype)
    for register in range(4):
        for e in range(per_word):
            words[:, register, e] = a[group + register % 2 * 8, first + register // 2 * half_k + e]
    for register in range(2):
        for e in range(per_word):
            words[:, 4 + register, e] = b[first + register * half_k + e, group]
    row, column = np.stack([group, group, group + 8, group + 8], 1), lane[:, None] % 4 * 2 + np.array([0, 1, 0, 1])
    operands = guarded_array((32, 6), np.uint32, name="operands", fill=words.view(np.uint32).reshape(32, 6))
    out = guarded_array((32, 4), np.float32, name="out", fill=c[row, column])
    body = MMA.replace("INSTRUCTION", INSTRUCTIONS[a.dtype])
    source = write_kernel(folder, body, "const unsigned* operands, float* out")
    assert run_kernel(source, operands[1], out[1], build=Build.FAST, mma=model).faults == ()
    result = np.zeros((16, 8), np.float32)
    result[row, column] = out[0]
    return result


@pytest.mark.parametrize("model", MmaModel)
@pytest.mark.parametrize("dtype", INSTRUCTIONS, ids=str)
def test_mma_of_small_integers_is_exact_in_every_model(dtype: np.dtype, model: MmaModel, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    depth = 8 if dtype == np.float32 else 16
    a, b, c = (rng.integers(-8, 9, shape) for shape in ((16, depth), (depth, 8), (16, 8)))
    result = mma(a.astype(dtype), b.astype(dtype), c.astype(np.float32), model, tmp_path)
    assert np.array_equal(result, a @ b + c)


@dataclasses.dataclass(frozen=True)
class Dot:
    """One dot product c + sum(a * b); the result under each model."""

    a: list[float]
    b: list[float]
    c: float
    ideal: float
    ampere: float
    hopper: float


SMALL = 2.0**-12
DOTS = {
    # F = 24 loses 2^-25 beside 1, F = 25 keeps it; four of them are one unit in the last place of 1.
    "terms just below the alignment": Dot([SMALL] * 4, [SMALL / 2] * 4, 1.0, 1 + 2**-23, 1.0, 1 + 2**-23),
    # 1 - 2^-25 lies between two fp32 values: to nearest gives 1, truncation the lower one.
    "truncation toward zero": Dot([-SMALL], [SMALL / 2], 1.0, 1.0, 1.0, 1 - 2**-24),
    "truncation is odd": Dot([SMALL], [SMALL / 2], -1.0, -1.0, -1.0, -(1 - 2**-24)),
    # 1.5 * 1.5 = 2.25 aligns by exponent 0, not 1, so eight terms of 2^-25 survive with F = 25.
    "products are not normalised": Dot(
        [1.5] + [SMALL] * 8, [1.5] + [SMALL / 2] * 8, 0.0, 2.25 + 2**-22, 2.25, 2.25 + 2**-22
    ),
    # The large terms cancel, but in one sum they push 2^-12 out. Ampere meets the small one in its second group of 8.
    "cancellation inside one sum": Dot([2.0**14, -(2.0**14)] + [0.0] * 6 + [SMALL], [1.0] * 9, 0.0, SMALL, SMALL, 0.0),
    "zeros do not set the alignment": Dot([0.0, SMALL], [30000.0, SMALL], 2.0**-40, *[2.0**-24 + 2.0**-40] * 3),
    "subnormal operands": Dot([2.0**-24] * 2, [2.0**-24, 1.0], 0.0, 2**-24 + 2**-48, 2.0**-24, 2.0**-24),
    "infinity": Dot([np.inf, 1.0], [2.0, -5.0], 3.0, *[np.inf] * 3),
    "infinity times zero": Dot([np.inf], [0.0], 3.0, *[np.nan] * 3),
    "opposite infinities": Dot([np.inf], [1.0], -np.inf, *[np.nan] * 3),
    "not a number": Dot([np.nan], [1.0], 0.0, *[np.nan] * 3),
}


@pytest.mark.parametrize("model", MmaModel)
@pytest.mark.parametrize("name", DOTS)
def test_dot_product_follows_the_rule(name: str, model: MmaModel, tmp_path: Path) -> None:
    dot = DOTS[name]
    a, b, c = np.zeros((16, 16), np.float16), np.zeros((16, 8), np.float16), np.zeros((16, 8), np.float32)
    a[11, : len(dot.a)], b[: len(dot.b), 5], c[11, 5] = dot.a, dot.b, dot.c
    result = mma(a, b, c, model, tmp_path)
    expected = {IDEAL: dot.ideal, AMPERE: dot.ampere, HOPPER: dot.hopper}[model]
    assert np.array_equal(result[11, 5], np.float32(expected), equal_nan=True)


def test_nan_of_the_tensor_core_is_all_ones_without_sign(tmp_path: Path) -> None:
    a, b, c = np.zeros((16, 16), np.float16), np.zeros((16, 8), np.float16), np.zeros((16, 8), np.float32)
    a[0, 0] = np.nan
    assert (mma(a, b, c, HOPPER, tmp_path)[0].view(np.uint32) == 0x7FFFFFFF).all()
