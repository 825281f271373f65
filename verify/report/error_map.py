"""Error maps as short texts: one character a cell, so that thousands of maps fit into one page."""

from __future__ import annotations

import math

ErrorMap = tuple[tuple[float, ...], ...]
ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_"
STEPS_PER_OCTAVE = 3
"""Cells are drawn as colours: a third of an octave (12 % either way) is finer than the eye."""
LOWEST_OCTAVE = -8
"""error/bound below 2^-8 and above 2^13 share the colour of the end."""
UNIT_LEVEL = -LOWEST_OCTAVE * STEPS_PER_OCTAVE
"""Level of error/bound 1, the last one that is accepted."""
INFINITE = "!"
EMPTY = "."


def encode_map(cells: ErrorMap) -> str:
    """Rows joined by a comma; `.` = nothing compared there (NaN), `!` = infinite."""
    return ",".join("".join(map(_encode_cell, row)) for row in cells)


def _encode_cell(ratio: float) -> str:
    if math.isnan(ratio):
        return EMPTY
    if math.isinf(ratio):
        return INFINITE
    if ratio <= 0.0:
        return ALPHABET[0]
    level = round((math.log2(ratio) - LOWEST_OCTAVE) * STEPS_PER_OCTAVE)
    # Rounding must not carry a cell over the bound: it would be drawn as accepted, or as rejected, and be neither.
    level = max(level, UNIT_LEVEL + 1) if ratio > 1.0 else min(level, UNIT_LEVEL)
    return ALPHABET[min(max(level, 0), len(ALPHABET) - 1)]
