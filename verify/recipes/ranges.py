"""Recipes at the two ends of the storage format: subnormal numbers and the neighbourhood of overflow."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from verify.dtypes import float_format
from verify.recipes.draw import Draw, Operands
from verify.recipes.registry import recipe

FP16_NEAR_MAX = 65000.0
"""Just below 65504, the largest fp16: room for the roundings of P, which may sum to 1 + 2^-11."""
GRADIENT_ROOM = 2.0**-10
"""Factor on dout that keeps dP = dout v^T and dS near 10^3 when |v| is near 65504."""


@recipe("subnormal", "v is subnormal in the storage dtype", "flushed subnormals, absolute error near zero")
def subnormal(draw: Draw) -> Operands:
    """v = N(0, 1) * 2^(min_exponent - 3): nearly every element lies below the smallest normal number."""
    x = draw.operands()
    return replace(x, v=x.v * 2.0 ** (float_format(draw.problem.dtype).min_exponent - 3))


@recipe(
    "near_overflow",
    "|v| just below 65504; out and gradients stay finite in fp16",
    "overflow of un-normalised sums in fp16",
)
def near_overflow(draw: Draw) -> Operands:
    """One sign a channel, so that out is as large as v. Dropout multiplies by 1/(1-p), so v leaves room for it."""
    x = draw.operands()
    largest = FP16_NEAR_MAX * (1.0 - draw.problem.dropout_p)
    signs = np.where(draw.uniform("near_overflow.sign", (draw.problem.head_dim_v,)) < 0.5, -1.0, 1.0)
    size = largest * (0.9 + 0.1 * draw.uniform("near_overflow", x.v.shape))
    return replace(x, v=size * signs, dout=x.dout * GRADIENT_ROOM)
