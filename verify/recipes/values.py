"""Recipes that design v: what P is multiplied with and what the softmax averages."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from verify.recipes.draw import Draw, Operands
from verify.recipes.registry import recipe

NEARLY_UNIFORM = 0.05
"""Factor on q that leaves the softmax almost uniform, so that sums over keys really cancel."""


@recipe("v_constant", "v is the same for every key, so out = v and dq = dk = 0", "rows of P that do not sum to 1")
def v_constant(draw: Draw) -> Operands:
    """All rows of v equal the first one of their sequence and head."""
    x = draw.operands()
    x.v[:] = x.v[:, :1]
    return x


@recipe("v_mean", "v with a large mean", "normaliser and P rounded differently, bias of O", mean=100.0)
def v_mean(draw: Draw, mean: float) -> Operands:
    """v + mean: an error of 1e-3 in the row sum shows as 0.1 in out."""
    x = draw.operands()
    return replace(x, v=x.v + mean)


@recipe("v_cancel", "v alternates +size, -size; the sum nearly cancels", "narrow P V sums, lost keys", size=50.0)
def v_cancel(draw: Draw, size: float) -> Operands:
    """Small noise of 0.01 beside the alternating part; nearly uniform softmax."""
    x = draw.operands()
    alternating = np.where(np.arange(draw.problem.seqlen_k) % 2 == 0, size, -size)[:, None, None]
    return replace(x, q=x.q * NEARLY_UNIFORM, v=alternating + 0.01 * x.v)


@recipe("v_trend", "first half of v is +1, second half -1", "adverse partial sums over key tiles")
def v_trend(draw: Draw) -> Operands:
    """Partial sums over the keys rise to the middle and fall back."""
    x = draw.operands()
    halves = np.where(np.arange(draw.problem.seqlen_k) < draw.problem.seqlen_k // 2, 1.0, -1.0)[:, None, None]
    return replace(x, q=x.q * NEARLY_UNIFORM, v=halves + 0.01 * x.v)


@recipe(
    "v_zero_channel",
    "the middle channel of v is 0, so out is exactly 0 there",
    "channels mixed or shifted, stale registers",
)
def v_zero_channel(draw: Draw) -> Operands:
    """Channel head_dim_v // 2; with head_dim_v = 1 all of v is 0."""
    x = draw.operands()
    x.v[..., draw.problem.head_dim_v // 2] = 0.0
    return x
