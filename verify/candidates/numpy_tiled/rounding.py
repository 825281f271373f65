"""Roundings and elementary functions of the emulated kernel: fp32 arrays in, fp32 arrays out.

Every function states its error, because a contract repeats it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from verify.dtypes import float_format

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453
# Minimax polynomial of degree 3 for 2^f on [0, 1), relative error 7.5e-5 = 630 * 2^-23.
_CUBIC = (0.99992522, 0.69583354, 0.22606716, 0.07802452)


def fp32(values: NDArray[Any]) -> F32:
    """Values in fp32: exact for fp16 and bf16, rounded to nearest for fp64."""
    return np.asarray(values, dtype=np.float32)


def round_to(values: F32, name: str) -> F32:
    """Values rounded to nearest even in the named format, kept in fp32."""
    if name == "fp32":
        return values
    return values.astype(float_format(name).numpy_dtype).astype(np.float32)


def truncate(values: F64) -> F32:
    """Values rounded toward zero to fp32."""
    nearest = values.astype(np.float32)
    too_far = np.abs(nearest.astype(np.float64)) > np.abs(values)
    return np.where(too_far, np.nextafter(nearest, np.float32(0)), nearest)


def multiply_subtract(left: F32, factor: np.float32, right: F32) -> F32:
    """fl(left*factor - right) with one rounding, as a fused multiply-add.

    The product of two fp32 numbers is exact in fp64; what the fp64 subtraction rounds is 2^-29 fp32 ulp.
    """
    return fp32(left.astype(np.float64) * np.float64(factor) - right.astype(np.float64))


def reciprocal(sums: F32) -> F32:
    """fl(1/sum) of row sums, and 1 for the empty sum 0 of a row with nothing to attend to."""
    return fp32(np.float32(1) / np.where(sums == 0, np.float32(1), sums))


def exp2(values: F32, kind: str) -> F32:
    """2^values. Error: rounded 0.5 ulp, cubic 640 ulp of 2^-23."""
    if kind == "rounded":
        return fp32(np.exp2(values.astype(np.float64)))
    # Below -160 the result is 0 in fp32 anyway; the clip keeps -inf out of the split.
    clipped = np.maximum(values, np.float32(-160))
    whole = np.floor(clipped)
    part = clipped - whole
    power = np.full_like(part, _CUBIC[3])
    for coefficient in _CUBIC[2::-1]:
        power = power * part + np.float32(coefficient)
    exponent = np.where(np.isfinite(whole), whole, 0).astype(np.int32)
    return np.where(values > -150, np.ldexp(power, exponent), np.where(np.isnan(values), values, np.float32(0)))


def exp(values: F32, kind: str) -> F32:
    """e^values. Error: rounded 0.5 ulp; cubic that of exp2 with the argument rounded to fp32."""
    if kind == "rounded":
        return fp32(np.exp(values.astype(np.float64)))
    return exp2(values * np.float32(LOG2_E), kind)


def log(values: F32) -> F32:
    """Natural logarithm, 0.5 ulp."""
    return fp32(np.log(values.astype(np.float64)))


def tanh(values: F32) -> F32:
    """Hyperbolic tangent, 0.5 ulp."""
    return fp32(np.tanh(values.astype(np.float64)))
