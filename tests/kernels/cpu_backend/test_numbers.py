"""Numbers of the device code on the host: 16-bit formats, ex2, atomics, integer intrinsics."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from kernels.cpu_backend import Build, guarded_array
from tests.kernels.cpu_backend.launching import run_kernel, write_kernel

FORMATS = {"__half": np.dtype(np.float16), "__nv_bfloat16": np.dtype(ml_dtypes.bfloat16)}


def map_on_device(
    body: str, given: np.ndarray, out_type: str, out_dtype: object, folder: Path, given_type: str
) -> np.ndarray:
    """Run ``out[i] = f(given[i])`` given as the body of a loop over i."""
    source = write_kernel(
        folder,
        f"for (int i = threadIdx.x; i < {len(given)}; i += 32) {{ {body} }}",
        f"const {given_type}* given, {out_type}* out",
    )
    _, given_buffer = guarded_array(given.shape, given.dtype, name="given", fill=given)
    out, out_buffer = guarded_array((len(given),), np.dtype(out_dtype), name="out")  # type: ignore[call-overload]
    assert run_kernel(source, given_buffer, out_buffer, build=Build.NOFMA).faults == ()
    return out


def same_bits_or_both_nan(got: np.ndarray, expected: np.ndarray) -> bool:
    unsigned = np.dtype(f"u{got.itemsize}")
    same = got.view(unsigned) == expected.view(unsigned)
    return bool((same | (np.isnan(got) & np.isnan(expected))).all())


@pytest.mark.parametrize("name", FORMATS)
def test_widening_is_exact_for_every_pattern(name: str, tmp_path: Path) -> None:
    given = np.arange(1 << 16, dtype=np.uint16).view(FORMATS[name])
    out = map_on_device("out[i] = float(given[i]);", given, "float", np.float32, tmp_path, name)
    assert same_bits_or_both_nan(out, given.astype(np.float32))


@pytest.mark.parametrize("name", FORMATS)
def test_narrowing_rounds_to_nearest_even(name: str, tmp_path: Path) -> None:
    values = np.arange(1 << 16, dtype=np.uint16).view(FORMATS[name]).astype(np.float32)
    finite = np.sort(values[np.isfinite(values)])
    ties = ((finite[:-1].astype(np.float64) + finite[1:]) / 2).astype(np.float32)
    random = np.random.default_rng(0).integers(0, 1 << 32, 1 << 16, dtype=np.uint32).view(np.float32)
    given = np.concatenate([ties, np.nextafter(ties, np.float32(0)), random])
    out = map_on_device(f"out[i] = {name}(given[i]);", given, name, FORMATS[name], tmp_path, "float")
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        assert same_bits_or_both_nan(out, given.astype(FORMATS[name]))


@pytest.mark.parametrize("name", FORMATS)
def test_fma_rounds_the_exact_value_once(name: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    dtype = FORMATS[name]
    exponent = rng.integers(-10, 3, size=(3000, 3))
    given = np.ldexp(rng.uniform(-2, 2, size=(3000, 3)), exponent).astype(dtype)
    out = map_on_device(
        "out[i] = __hfma(given[3 * i], given[3 * i + 1], given[3 * i + 2]);", given, name, dtype, tmp_path, name
    )
    for (a, b, c), got in zip(given.astype(float).tolist(), out, strict=True):
        exact = Fraction(a) * Fraction(b) + Fraction(c)
        below, above = np.nextafter(got, dtype.type(-np.inf)), np.nextafter(got, dtype.type(np.inf))
        error = abs(exact - Fraction(float(got)))
        assert all(error <= abs(exact - Fraction(float(near))) for near in (below, above)), (a, b, c, got)


def test_fma_is_not_fooled_by_a_tiny_addend_beside_a_tie(tmp_path: Path) -> None:
    # 1.0078125 * 1.5 = 1.51171875 lies halfway between two bf16 values; 2^-120 decides, and double would lose it.
    given = np.array([[1.0078125, 1.5, 2.0**-120], [1.0078125, 1.5, -(2.0**-120)]], ml_dtypes.bfloat16)
    out = map_on_device(
        "out[i] = __hfma(given[3 * i], given[3 * i + 1], given[3 * i + 2]);",
        given,
        "__nv_bfloat16",
        ml_dtypes.bfloat16,
        tmp_path,
        "__nv_bfloat16",
    )
    assert out.astype(float).tolist() == [1.515625, 1.5078125]


def test_exp2_approx_is_within_two_ulp_and_flushes_subnormals(tmp_path: Path) -> None:
    given = np.concatenate([np.linspace(-140, 128, 4001), [-np.inf, np.inf, np.nan, 1e-40, -126.0, -126.01]])
    out = map_on_device(
        "out[i] = exp2_approx(given[i]);", given.astype(np.float32), "float", np.float32, tmp_path, "float"
    )
    with np.errstate(over="ignore", under="ignore"):
        exact = np.exp2(given.astype(np.float32).astype(np.float64)).astype(np.float32)
    exact[exact < 2.0**-126] = 0.0
    difference = np.abs(out.view(np.int32).astype(np.int64) - exact.view(np.int32))
    assert (difference[~np.isnan(exact)] <= 2).all()
    assert np.array_equal(np.isnan(out), np.isnan(exact))


def test_min_and_max_of_floats_ignore_a_nan(tmp_path: Path) -> None:
    given = np.array([np.nan, 3.0, -2.0], np.float32)
    body = "out[i] = i == 0 ? max(given[0], given[1]) : i == 1 ? min(given[2], given[0]) : max(1, 2u);"
    assert map_on_device(body, given, "float", np.float32, tmp_path, "float").tolist() == [3.0, -2.0, 2.0]


def test_rounded_product_is_not_contracted(tmp_path: Path) -> None:
    given = np.array([1 + 2.0**-12], np.float32)
    source = write_kernel(tmp_path, "out[0] = __fmul_rn(given[0], given[0]) - given[0];", "float* given, float* out")
    _, buffer = guarded_array((1,), np.float32, name="given", fill=given)
    out, out_buffer = guarded_array((1,), np.float32, name="out")
    run_kernel(source, buffer, out_buffer, build=Build.FAST)
    assert out[0] == given[0] * given[0] - given[0]


INTEGERS = """
unsigned x = 0x12345678u;
out[0] = __popc(x);
out[1] = __clz(x) + 100 * __clz(0) + 10000 * __ffs(0x80);
out[2] = __brev(x);
out[3] = __byte_perm(x, 0x9abcdef0u, 0x7048);
out[4] = __umulhi(x, x);
out[5] = __float_as_uint(-1.5f);
"""


def test_integer_intrinsics(tmp_path: Path) -> None:
    out, buffer = guarded_array((6,), np.uint32, name="out")
    assert run_kernel(write_kernel(tmp_path, INTEGERS, "unsigned* out"), buffer, threads=1).faults == ()
    # Selector 0x7048 from the low nibble: the sign of byte 0, bytes 4, 0 and 7.
    assert out.tolist() == [13, 83203, 0x1E6A2C48, 0x9A78F000, 0x014B66DC, 0xBFC00000]


ATOMICS = """
int t = threadIdx.x;
atomicAdd((int*)out, t);
atomicMax((int*)out + 1, t * 7 % 32);
atomicMin((int*)out + 2, t * 7 % 32 - 9);
atomicOr((unsigned*)out + 3, 1u << t);
atomicCAS((int*)out + 4, t, t + 1);
atomicExch((int*)out + 5, 77);
atomicAdd((float*)out + 6, 0.5f);
atomicAdd((__half2*)(out + 7), __floats2half2_rn(1.0f, 2.0f));
"""


@pytest.mark.parametrize("build", [Build.FAST, Build.CHECKED])
def test_atomics(build: Build, tmp_path: Path) -> None:
    out, buffer = guarded_array((8,), np.uint32, name="out", fill=0)
    assert run_kernel(write_kernel(tmp_path, ATOMICS, "unsigned* out"), buffer, build=build).faults == ()
    assert out[:6].tolist() == [496, 31, 2**32 - 9, 2**32 - 1, 32, 77]
    assert out[6:7].view(np.float32)[0] == 16.0
    assert out[7:].view(np.float16).tolist() == [32.0, 64.0]
