"""Where the wrong elements of a tensor lie, in words: rows, heads, tiles, columns, a constant factor. No verdicts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
Float64 = NDArray[np.float64]
MAP_SIZE = 32

AXES = {
    3: ("row", "head", "column"),
    4: ("batch", "row", "head", "column"),
}
LSE_AXES = {2: ("head", "row"), 3: ("batch", "head", "row")}


def axis_names(tensor: str, ndim: int) -> tuple[str, ...]:
    """Names of the axes of an output in logical shape; keys are called rows of dk and dv."""
    if tensor == "lse":
        return LSE_AXES[ndim]
    if tensor == "dbias":
        return ("batch", "head", "row", "key")
    if tensor == "dsink":
        return ("head",)
    return AXES[ndim]


def describe(wrong: Bools, got: Float64, expected: Float64, *, tensor: str, tile_rows: int) -> str:
    """One line that says where `wrong` elements lie.

    Parameters
    ----------
    wrong
        True where the element is not accepted; any logical output shape.
    got, expected
        Same shape, for "all zeros" and constant factors.
    tile_rows
        Rows (keys for dk, dv) of the candidate's declared tile; 0 = unknown.
    """
    total, count = wrong.size, int(np.count_nonzero(wrong))
    if not count:
        return ""
    parts = [f"{count} of {total} elements"]
    if np.isnan(got).all():
        parts.append("all NaN")
    elif not got.any() and expected.any():
        parts.append("all zeros")
    elif factor := constant_factor(got, expected, wrong):
        parts.append(f"got = {factor:.6g} x expected")
    for axis, name in enumerate(axis_names(tensor, wrong.ndim)):
        if text := _extent(wrong, axis, name, tile_rows if name == "row" else 0):
            parts.append(text)
    return ", ".join(parts)


def constant_factor(got: Float64, expected: Float64, wrong: Bools) -> float | None:
    """The factor that maps expected to got on the wrong elements to 1 %, or None when there is none."""
    usable = wrong & np.isfinite(got) & np.isfinite(expected) & (expected != 0)
    if np.count_nonzero(usable) < 4:
        return None
    with np.errstate(over="ignore"):
        ratio = got[usable] / expected[usable]
    middle = float(np.median(ratio))
    if not np.isfinite(middle):
        return None
    spread = float(np.median(np.abs(ratio - middle)))
    return middle if middle != 0 and spread < 0.01 * abs(middle) and abs(middle - 1) > 0.002 else None


def error_map(ratio: Float64, *, tensor: str) -> tuple[tuple[tuple[float, ...], ...], tuple[str, str]]:
    """Largest error/bound in at most 32 x 32 buckets over (all rows of all heads, columns), with the axis names."""
    names = axis_names(tensor, ratio.ndim)
    if ratio.ndim < 2 or ratio.size == 0:
        flat = ratio.reshape(1, -1) if ratio.size else np.zeros((1, 1))
        return _buckets(flat), ("", names[-1])
    last = ratio.shape[-1]
    table = ratio.reshape(-1, last)
    if len(names) >= 3 and names[-2] == "head":
        table = np.moveaxis(ratio, -2, -3).reshape(-1, last)
        return _buckets(table), ("head x row", names[-1])
    return _buckets(table), (" x ".join(names[:-1]), names[-1])


def _buckets(table: Float64) -> tuple[tuple[float, ...], ...]:
    rows, columns = (_starts(extent) for extent in table.shape)
    # fmax leaves NaN out, as nanmax does; no ratio is negative.
    largest = np.fmax.reduceat(np.fmax.reduceat(table, rows, axis=0), columns, axis=1)
    return tuple(map(tuple, np.where(np.isnan(largest), 0.0, largest).tolist()))


def _starts(extent: int) -> NDArray[np.intp]:
    """First index of each of at most MAP_SIZE buckets."""
    return np.unique(np.linspace(0, extent, min(extent, MAP_SIZE) + 1).astype(np.intp))[:-1]


def _extent(wrong: Bools, axis: int, name: str, tile: int) -> str:
    """How the wrong elements spread along one axis; empty when they cover most of it or it has extent 1."""
    extent = wrong.shape[axis]
    other = tuple(a for a in range(wrong.ndim) if a != axis)
    hit = np.flatnonzero(wrong.any(axis=other))
    if extent == 1 or len(hit) > max(1, 0.8 * extent):
        return ""
    text = f"{name} {hit[0]}" if len(hit) == 1 else f"{name}s {_ranges(hit)}"
    if tile and len(hit) < extent:
        text += _tile_note(hit, extent, tile)
    return text


def _tile_note(hit: Sequence[int] | NDArray[np.intp], extent: int, tile: int) -> str:
    tiles = np.unique(np.asarray(hit) // tile)
    last = (extent - 1) // tile
    if len(tiles) == 1 and tiles[0] == last:
        return f" (last tile of {tile})"
    return f" (tile {tiles[0]} of {tile})" if len(tiles) == 1 else ""


def _ranges(hit: NDArray[np.intp]) -> str:
    """Consecutive runs as a..b, at most four of them."""
    cuts = np.flatnonzero(np.diff(hit) > 1) + 1
    runs = np.split(hit, cuts)
    texts = [f"{run[0]}..{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs[:4]]
    return " ".join(texts) + (f" and {len(runs) - 4} more runs" if len(runs) > 4 else "")
