"""Storage dtypes: their names, NumPy types, unit roundoff and exact spacing. Pure facts, no arrays are kept."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from verify.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatFormat:
    """One binary floating-point format with round-to-nearest-even storage."""

    name: str
    """Short name used in case ids: fp32, fp16, bf16, ..."""
    numpy_dtype: np.dtype[Any]
    """NumPy dtype of stored arrays (ml_dtypes for bf16)."""
    precision: int
    """Significand bits, hidden bit included."""
    min_exponent: int
    """Exponent of the smallest normal number."""
    max_finite: float
    """Largest finite value."""

    @property
    def unit_roundoff(self) -> float:
        """Largest relative error of one rounding to nearest: 2^-precision."""
        return float(2.0**-self.precision)

    @property
    def half_subnormal(self) -> float:
        """Half the smallest positive subnormal: the largest absolute error of one rounding near zero."""
        return float(2.0 ** (self.min_exponent - self.precision))

    @property
    def overflow_threshold(self) -> float:
        """Smallest magnitude that rounds to infinity: half an ulp beyond the largest finite number."""
        return self.max_finite + math.ldexp(1.0, math.frexp(self.max_finite)[1] - 1 - self.precision)

    def half_ulp(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Exact half unit in the last place at the magnitude of finite values (subnormals included), same shape, fp64.

        Masks the significand, which leaves the power of two: ten times as fast as frexp and ldexp.
        """
        exponent = np.ascontiguousarray(values, dtype=np.float64).view(np.int64) & np.int64(0x7FF0000000000000)
        power = np.maximum(exponent.view(np.float64), 2.0**self.min_exponent)
        power *= self.unit_roundoff
        spacing: NDArray[np.float64] = power.reshape(np.shape(values))
        return spacing

    def may_overflow(self, values: NDArray[np.float64], error: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Finite values whose magnitude plus error reaches the rounding threshold to infinity."""
        with np.errstate(over="ignore", invalid="ignore"):
            reaches: NDArray[np.bool_] = np.abs(values) + error >= self.overflow_threshold
        return reaches & np.isfinite(values)


FP64 = FloatFormat(
    name="fp64",
    numpy_dtype=np.dtype(np.float64),
    precision=53,
    min_exponent=-1022,
    max_finite=float(np.finfo(np.float64).max),
)
FP32 = FloatFormat(
    name="fp32",
    numpy_dtype=np.dtype(np.float32),
    precision=24,
    min_exponent=-126,
    max_finite=float(np.finfo(np.float32).max),
)
FP16 = FloatFormat(
    name="fp16",
    numpy_dtype=np.dtype(np.float16),
    precision=11,
    min_exponent=-14,
    max_finite=65504.0,
)
BF16 = FloatFormat(
    name="bf16",
    numpy_dtype=np.dtype(ml_dtypes.bfloat16),
    precision=8,
    min_exponent=-126,
    max_finite=float.fromhex("0x1.fep127"),
)

FORMATS = {form.name: form for form in (FP64, FP32, FP16, BF16)}
STORAGE_DTYPES = ("fp32", "fp16", "bf16")


def float_format(name: str) -> FloatFormat:
    """The format of that name; UsageError for an unknown one."""
    form = FORMATS.get(name)
    if form is None:
        raise UsageError(f"dtype={name!r}: expected one of {', '.join(FORMATS)}")
    return form


def name_of(dtype: np.dtype[Any]) -> str:
    """Short name of a NumPy dtype (`fp16` for float16); the NumPy name where there is no short one."""
    for form in FORMATS.values():
        if form.numpy_dtype == dtype:
            return form.name
    return str(dtype)
