"""The recipe of a minimised case: q, k, v, dout written out in the case id itself, so that no file goes with it.

A tensor is a list of numbers in C order of its padded logical shape: `1~0x62~-2` is 1, then 62 zeros, then -2, then
zeros to the end. A tensor that is left out is drawn from N(0, 1) with the seed of the case.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby

import numpy as np

from verify.case import Recipe
from verify.errors import UsageError, require
from verify.recipes.draw import Draw, Float64, Operands
from verify.recipes.registry import recipe

NAME = "pinned"
OPERANDS = ("q", "k", "v", "dout")
DRAWN = "drawn"
"""Value of a parameter whose tensor is not written out."""
SEPARATOR = "~"
"""Neither quoted in a case id nor part of a number."""


@recipe(
    NAME,
    "q, k, v, dout written in the case id",
    "the minimised case of a fault that was found before",
    q=DRAWN,
    k=DRAWN,
    v=DRAWN,
    dout=DRAWN,
)
def pinned(draw: Draw, q: str | int, k: str | int, v: str | int, dout: str | int) -> Operands:
    """Values of the case id; a tensor that is left out is drawn from N(0, 1)."""
    drawn = draw.operands()
    texts = {"q": str(q), "k": str(k), "v": str(v), "dout": str(dout)}
    arrays = {name: _read(name, text, getattr(drawn, name)) for name, text in texts.items()}
    return Operands(q=arrays["q"], k=arrays["k"], v=arrays["v"], dout=arrays["dout"])


def pinned_recipe(values: Mapping[str, Float64]) -> Recipe:
    """Recipe of the given padded arrays, (batch, seqlen, heads, dim) fp64, exact in fp32; the others stay drawn."""
    texts = {name: write_values(array) for name, array in values.items()}
    # A lone integer goes as a number: case ids escape text that reads as one.
    return Recipe.of(NAME, **{name: int(text) if _is_integer(text) else text for name, text in texts.items()})


def write_values(array: Float64) -> str:
    """Text of an array, trailing zeros left out."""
    flat = np.asarray(array, dtype=np.float64).ravel()
    used = np.flatnonzero((flat != 0) | np.signbit(flat))
    texts = (_number(float(value)) for value in flat[: used[-1] + 1 if used.size else 0])
    runs = ((text, sum(1 for _ in group)) for text, group in groupby(texts))
    return SEPARATOR.join(text if count == 1 else f"{text}x{count}" for text, count in runs) or "0"


def _is_integer(text: str) -> bool:
    return text != "-0" and text.removeprefix("-").isdecimal()


def _number(value: float) -> str:
    """Shortest text that reads back to the same fp32 number."""
    text = str(np.float32(value))
    return text.removesuffix(".0")


def _read(name: str, text: str, drawn: Float64) -> Float64:
    if text == DRAWN:
        return drawn
    flat = np.zeros(drawn.size)
    end = 0
    for value, count in _runs(name, text):
        require(end + count <= flat.size or value == 0, f"pinned:{name}", text, f"at most {flat.size} numbers")
        flat[end : end + count] = value
        end += count
    return flat.reshape(drawn.shape)


def _runs(name: str, text: str) -> Iterator[tuple[float, int]]:
    for token in text.split(SEPARATOR):
        value, times, count = token.partition("x")
        try:
            yield float(value), int(count) if times else 1
        except ValueError as error:
            raise UsageError(f"pinned:{name}={token!r}: expected a number or numberxcount") from error
