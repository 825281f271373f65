"""Recipe `repeats`: operands whose numbers, rows or channels repeat, as in the tests that people write with `ones`.

Equal numbers have equal rounding errors, which add instead of averaging out: here a bound that takes them for
independent is too small, and a kernel that confuses rows or channels is right by accident.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from verify.errors import require
from verify.recipes.draw import Draw, Float64, Operands, share
from verify.recipes.registry import recipe

Random = np.random.Generator


def _few(x: Float64, random: Random, count: int) -> Float64:
    return random.standard_normal(count)[(random.random(x.shape) * count).astype(np.int64)]


def _needle(x: Float64, random: Random) -> Float64:
    rows = 0.01 * x
    if x.shape[1]:
        rows[:, int(random.random() * x.shape[1])] = 2.0 ** (1 + int(4 * random.random()))
    return rows


PATTERNS: dict[str, Callable[[Float64, Random], Float64]] = {
    "normal": lambda x, random: x,
    "all": lambda x, random: np.full(x.shape, random.standard_normal()),
    "channels": lambda x, random: np.broadcast_to(x[..., :1], x.shape),
    "pairs": lambda x, random: np.where(np.arange(x.shape[-1]) % 2 == 0, x[..., :1], x[..., -1:]),
    "rows": lambda x, random: np.broadcast_to(x[:, :1], x.shape),
    "two": lambda x, random: _few(x, random, 2),
    "five": lambda x, random: _few(x, random, 5),
    "signs": lambda x, random: np.sign(x) * (0.5 + 1.5 * random.random()),
    "halves": lambda x, random: np.round(2 * x) / 2 * (0.5 + 1.5 * random.random()),
    "mean": lambda x, random: x * 2.0 ** -int(7 * random.random()) + 2.0 ** int(5 * random.random()),
    "positive": lambda x, random: np.abs(x),
    "tiny": lambda x, random: x * 2.0 ** -int(27 * random.random()),
    "needle": _needle,
    "zero": lambda x, random: np.zeros(x.shape),
}
"""Name -> values from standard normal ones of the same shape, (batch, seqlen, heads, dim)."""


@recipe(
    "repeats",
    "q, k, v, dout each in one of 14 patterns: constant, few values, signs, a mean",
    "equal rounding errors, which add up; rows and channels that are right by accident",
    q="channels",
    k="channels",
    v="all",
    dout="all",
)
def repeats(draw: Draw, q: str, k: str, v: str, dout: str) -> Operands:
    """Patterns by name (`PATTERNS`): constant over channels, rows or altogether, few values, signs, a large mean ..."""
    x = draw.operands()
    made: dict[str, Float64] = {}
    for name, pattern in {"q": q, "k": k, "v": v, "dout": dout}.items():
        require(pattern in PATTERNS, f"repeats:{name}", pattern, "one of " + ", ".join(PATTERNS))
        values = getattr(x, name)
        made[name] = PATTERNS[pattern](values, draw.stream(f"repeats.{name}")).copy() if values.size else values
    for name in ("k", "v"):
        share(draw.problem, made[name])
    return replace(x, q=made["q"], k=made["k"], v=made["v"], dout=made["dout"])
