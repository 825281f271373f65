"""Recipes with independent random elements: plain, scaled, outliers, integers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from verify.errors import require
from verify.recipes.draw import Draw, Float64, Operands, coarse, largest_score
from verify.recipes.registry import recipe


@recipe("normal", "q, k, v ~ N(0, std^2), dout ~ N(0, 1)", "any gross fault; baseline of gain and RMSE tests", std=1.0)
def normal(draw: Draw, std: float) -> Operands:
    """Independent normal elements; std = 3 gives logits of a few units of 9."""
    require(std >= 0, "normal:std", std, "a number >= 0")
    x = draw.operands()
    return replace(x, q=x.q * std, k=x.k * std, v=x.v * std)


@recipe("integers", "small integers, exact in every dtype", "indexing, masks, heads")
def integers(draw: Draw) -> Operands:
    """q, k in -2..2, v in -8..8, dout in -4..4: a wrong element is whole units off."""
    x = draw.operands()

    def whole(name: str, like: Float64, bound: int) -> Float64:
        return np.floor(draw.uniform(f"integers.{name}", like.shape) * (2 * bound + 1)) - bound

    return Operands(q=whole("q", x.q, 2), k=whole("k", x.k, 2), v=whole("v", x.v, 8), dout=whole("dout", x.dout, 4))


@recipe(
    "outliers",
    "N(0, 1) + N(0, std^2) * Bernoulli(p) in q, k, v (FlashAttention-3, section 4.3)",
    "narrow formats, quantisation, range of the scores",
    p=0.001,
    std=10.0,
)
def outliers(draw: Draw, p: float, std: float) -> Operands:
    """Mixture of Shah et al. 2024 (arXiv 2407.08608, section 4.3); few elements may hold no outlier at all."""
    require(0 <= p <= 1, "outliers:p", p, "a number in [0, 1]")
    x = draw.operands()

    def mixed(name: str, base: Float64) -> Float64:
        hit = draw.uniform(f"outliers.{name}.hit", base.shape) < p
        return base + std * draw.normal(f"outliers.{name}", base.shape) * hit

    return replace(x, q=mixed("q", x.q), k=mixed("k", x.k), v=mixed("v", x.v))


@recipe(
    "logits", "normal q and k scaled so that the largest |score| is `max`", "overflow of exp, scale, rescale", max=10.0
)
def logits(draw: Draw, max: float) -> Operands:
    """Scores are softmax_scale * q k^T before softcap, bias and mask."""
    require(max > 0, "logits:max", max, "a number > 0")
    x = draw.operands()
    largest = largest_score(draw.problem, x.q, x.k)
    factor = coarse(float(np.sqrt(max / largest))) if largest else 1.0
    return replace(x, q=x.q * factor, k=x.k * factor)
