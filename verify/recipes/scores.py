"""Recipes that design the scores: where the maximum sits, how often it occurs, how it moves from tile to tile."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from verify.errors import require
from verify.problem import AttentionProblem
from verify.recipes.draw import Draw, Float64, Operands, by_query_head, coarse, score_rows
from verify.recipes.registry import recipe

TILE_SIZES = (128, 64, 32, 16)
"""Key tiles of common kernels, for the key that opens a tile of the largest size that fits."""
SCORE_NOISE = 0.5
"""Standard deviation of a designed score, well below the steps that the designs rely on."""


@recipe("identical_queries", "every query row of a head is the same", "row tiles, delta, row statistics")
def identical_queries(draw: Draw) -> Operands:
    """All rows of q equal the first one of their sequence and head."""
    x = draw.operands()
    x.q[:] = x.q[:, :1]
    return x


@recipe("identical_keys", "every key of a head is the same, so out = mean of v", "row sum, tile tails, uniform softmax")
def identical_keys(draw: Draw) -> Operands:
    """All keys equal the first one of their sequence and head: every key is a maximum."""
    x = draw.operands()
    x.k[:] = x.k[:, :1]
    return x


@recipe("zero_queries", "q = 0: uniform softmax, lse = ln n, dk = 0", "row sum, length masks, zero gradients")
def zero_queries(draw: Draw) -> Operands:
    """Every score is exactly 0."""
    x = draw.operands()
    return replace(x, q=np.zeros_like(x.q))


@recipe("two_keys", "each key is one of two values, v shifted by 2", "ties of the maximum, repeated probabilities")
def two_keys(draw: Draw) -> Operands:
    """Keys 0 and 1 of a head, repeated in random order; with one key there is one value."""
    x = draw.operands()
    if draw.problem.seqlen_k:
        second = min(1, draw.problem.seqlen_k - 1)
        first_chosen = draw.uniform("two_keys", (1, draw.problem.seqlen_k, 1, 1)) < 0.5
        x = replace(x, k=np.where(first_chosen, x.k[:, :1], x.k[:, second : second + 1]))
    return replace(x, v=x.v + 2.0)


@recipe(
    "low_logits",
    "every score about -level, or every q k^T about -unscaled",
    "half-masked tiles that add exp(0), guard values that become the running maximum, finite -inf sentinels",
    level=100.0,
    unscaled=0.0,
)
def low_logits(draw: Draw, level: float, unscaled: float) -> Operands:
    """q = a*u + noise, k = -a*u + noise with u of +-1, a^2*head_dim = level/softmax_scale (or = unscaled)."""
    require(level > 0, "low_logits:level", level, "a number > 0")
    require(unscaled >= 0, "low_logits:unscaled", unscaled, "a number >= 0")
    p = draw.problem
    size = np.sqrt((unscaled or level / p.softmax_scale) / p.head_dim)
    x, signs = draw.operands(), draw.signs("low_logits.u")
    noise = SCORE_NOISE / (p.softmax_scale * size * np.sqrt(p.head_dim))
    # Noise larger than the common part would make some scores positive (small level only).
    noise = min(noise, size / 4)
    return replace(x, q=size * by_query_head(p, signs) + noise * x.q, k=-size * signs + noise * x.k)


@recipe(
    "exact_ties",
    "`count` equal keys, spread over the sequence, share the maximum; v of one sign",
    "biased rounding of O when P = 1 repeats (Qiu and Yao 2025), rescale on equal maxima",
    count=4,
)
def exact_ties(draw: Draw, count: int) -> Operands:
    """Tied keys are equal bit for bit. v = -|N(0, 1)|, the sign pattern of arXiv 2510.04212."""
    return _tied(draw, count, step=0.0)


@recipe(
    "near_ties",
    "as exact_ties, but the keys differ by `step` relatively in one component",
    "lazy rescale, running maximum updated with > instead of >=, order of tiles",
    count=4,
    step=0.01,
)
def near_ties(draw: Draw, count: int, step: float) -> Operands:
    """The default step exceeds one bf16 unit in the last place (2^-7), so that the keys stay distinct when rounded."""
    return _tied(draw, count, step=step)


@recipe(
    "needle",
    "one key holds the maximum by `gap` or more in every row; position first, last, tile_edge or an index",
    "lost or duplicated keys, tile ranges, first and last tile, wrong key offset",
    position="last",
    gap=10.0,
)
def needle(draw: Draw, position: str | int, gap: float) -> Operands:
    """Rows that see the needle return its v. An index beyond the sequence means its last key."""
    known = isinstance(position, int) or position in ("first", "last", "tile_edge")
    require(known, "needle:position", position, "first, last, tile_edge or an integer")
    p, x = draw.problem, _facing_queries(draw)
    signs = draw.signs("direction")
    # Every |q| is at least 1/2, so this size gives the gap to the weakest row as well.
    size = coarse(1.01 * _largest_share(p, x) + 2.0 * gap / (p.softmax_scale * p.head_dim))
    for sequence in range(p.batch):
        keys = p.lengths(sequence)[1]
        if keys:
            x.k[sequence, needle_index(position, keys)] = size * signs
    return x


def needle_index(position: str | int, keys: int) -> int:
    """Key that a needle position names in a sequence of `keys` >= 1 keys."""
    if isinstance(position, int):
        return max(0, min(position, keys - 1))
    if position == "tile_edge":
        tile = next((tile for tile in TILE_SIZES if tile < keys), 1)
        return tile * ((keys - 1) // tile)
    return 0 if position == "first" else keys - 1


@recipe(
    "rising_tiles",
    "the maximum rises by `step` from each tile of keys to the next",
    "every tile rescales: stale maximum, missing rescale of O or of the row sum",
    tile=16,
    step=4.0,
)
def rising_tiles(draw: Draw, tile: int, step: float) -> Operands:
    """With tile = 16 the maxima of larger tiles rise too."""
    return _ramp(draw, tile, step, rising=True)


@recipe(
    "falling_tiles",
    "the maximum falls by `step` from each tile of keys to the next",
    "the first tile decides: later tiles must shrink, kernels that walk keys backwards rescale each time",
    tile=16,
    step=4.0,
)
def falling_tiles(draw: Draw, tile: int, step: float) -> Operands:
    """Mirror image of rising_tiles."""
    return _ramp(draw, tile, step, rising=False)


@recipe("kdim_trend", "q k^T sums head_dim/2 positive, then negative products", "narrow accumulation of q k^T")
def kdim_trend(draw: Draw) -> Operands:
    """Partial sums grow to about 2*head_dim/2 before they cancel: adverse to truncating accumulators."""
    x = draw.operands()
    halves = np.where(np.arange(draw.problem.head_dim) < draw.problem.head_dim // 2, 1.0, -1.0)
    return replace(x, q=np.abs(x.q) + 1.0, k=(np.abs(x.k) + 1.0) * halves)


@recipe("kmean", "keys share a large mean that the softmax cancels", "cancellation of the score shift", mean=20.0)
def kmean(draw: Draw, mean: float) -> Operands:
    """k + mean shifts all scores of a row alike; q is halved."""
    x = draw.operands()
    return replace(x, q=x.q * 0.5, k=x.k + mean)


def _facing_queries(draw: Draw) -> Operands:
    """Operands whose q has the signs of `direction`, each |q| >= 1/2: a key along it scores high in all rows."""
    x = draw.operands()
    return replace(x, q=(0.5 + np.abs(x.q)) * by_query_head(draw.problem, draw.signs("direction")))


def _largest_share(p: AttentionProblem, x: Operands) -> float:
    """Largest (q k) / sum|q| over all rows and keys: the size at which a key along the direction ties with it."""
    largest = 0.0
    for sequence in range(p.batch):
        rows, keys = p.lengths(sequence)
        if rows and keys:
            for head in range(p.nheads):
                scores = score_rows(p, x.q, x.k, sequence, head).max(axis=1) / p.softmax_scale
                largest = max(largest, float((scores / np.abs(x.q[sequence, :rows, head]).sum(axis=1)).max()))
    return largest


def _tied(draw: Draw, count: int, step: float) -> Operands:
    require(isinstance(count, int) and count >= 2, "count", count, "an integer >= 2")
    p, x = draw.problem, _facing_queries(draw)
    leader = coarse(1.25 * _largest_share(p, x)) * draw.signs("direction")
    for sequence in range(p.batch):
        keys = p.lengths(sequence)[1]
        for copy in range(min(count, keys)):
            where = copy * keys // min(count, keys)
            x.k[sequence, where] = leader
            x.k[sequence, where, :, copy % p.head_dim] *= 1.0 + copy * step
    return replace(x, v=-np.abs(x.v))


def _ramp(draw: Draw, tile: int, step: float, rising: bool) -> Operands:
    require(isinstance(tile, int) and tile >= 1, "tile", tile, "an integer >= 1")
    require(step > 0, "step", step, "a number > 0")
    p, x, signs = draw.problem, draw.operands(), draw.signs("ramp")
    size = 1.0 / np.sqrt(p.softmax_scale * p.head_dim)
    tiles: Float64 = np.floor(np.arange(p.seqlen_k, dtype=np.float64) / tile)
    heights = step * (tiles if rising else tiles[-1:] - tiles)
    noise = SCORE_NOISE / (p.softmax_scale * size * np.sqrt(p.head_dim))
    # score = height + SCORE_NOISE * N(0, 1): size^2 * head_dim * softmax_scale = 1. q carries no noise of its own,
    # which the height would multiply; its rows differ by a factor in [1, 1.25) instead.
    growth = 1.0 + 0.25 * draw.uniform("ramp.growth", x.q.shape[:3])[..., None]
    k = heights[:, None, None] * (size * signs) + noise * x.k
    return replace(x, q=size * growth * by_query_head(p, signs), k=k)
