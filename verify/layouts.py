"""Where each array of a case lies in memory: base buffers with guards, gaps and strides. Knows no values.

A placement is plain data, so a worker process or a GPU can rebuild the same views over a copy of the buffers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from verify.errors import require
from verify.problem import AttentionProblem

Array = NDArray[Any]
Shape = tuple[int, ...]

GUARD_ELEMENTS = 64
"""Elements before and after the data of a buffer: a kernel that steps over an edge meets poison, not another array."""
ALIGNMENT_BYTES = 128
"""Alignment of a buffer and, as the guard is a multiple of it for 2-byte and wider types, of its data."""
POISONS = ("nan", "inf", "1e30", "zero")
INTEGER_POISON = 2**31 - 1
"""Gap value of integer arrays: no row, page or length."""
OPERANDS = ("q", "k", "v", "dout")
# (rows, heads, head_dim) that a sliced operand leaves out. They differ from operand to operand, so that a kernel that
# reads one with the strides of another is wrong; multiples of 8 elements keep 16-byte loads legal.
SLICED_GAPS: Mapping[str, tuple[int, int, int]] = {
    "q": (3, 1, 8),
    "k": (5, 2, 16),
    "v": (2, 1, 24),
    "dout": (1, 2, 32),
}
ELEMENT_STEP = 2
"""Elements from one element of a strided head vector to the next."""
SLICED_ROW_GAP = 8
"""Elements between two rows of a sliced mask or bias."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """One array as a strided view of a 1-D buffer. Offset and strides count elements, not bytes."""

    buffer: str
    offset: int
    shape: Shape
    strides: Shape


def place(problem: AttentionProblem, shapes: Mapping[str, Shape]) -> dict[str, Placement]:
    """Placement of every array for the layout of the problem; `shapes` maps array names to logical shapes."""
    packed = ("q", "k", "v") if problem.layout == "packed_qkv" else ()
    placements = {name: _place_packed(shapes[name], slot) for slot, name in enumerate(packed)}
    for name, shape in shapes.items():
        if name not in placements:
            strides = _strides(problem.layout, name, shape)
            offset = GUARD_ELEMENTS + (1 if problem.layout == "offset" and name in OPERANDS else 0)
            placements[name] = Placement(buffer=name, offset=offset, shape=shape, strides=strides)
    return {name: placements[name] for name in shapes}


def buffer_sizes(placements: Mapping[str, Placement]) -> dict[str, int]:
    """Elements of every buffer, guards included."""
    sizes: dict[str, int] = {}
    for placement in placements.values():
        end = placement.offset + _reach(placement) + GUARD_ELEMENTS
        sizes[placement.buffer] = max(end, sizes.get(placement.buffer, 0))
    return sizes


def view(buffer: Array, placement: Placement) -> Array:
    """The array of a placement over its buffer; writes go through to the buffer.

    Raises
    ------
    UsageError
        The buffer is too short for the placement.
    """
    needed = placement.offset + _reach(placement)
    require(buffer.size >= needed, "buffer", buffer.size, f"at least {needed} elements for {placement.buffer}")
    strides = tuple(step * buffer.itemsize for step in placement.strides)
    return as_strided(buffer[placement.offset :], placement.shape, strides)


def poison_value(dtype: np.dtype[Any], poison: str) -> Any:
    """What fills a gap of that dtype. 1e30 saturates to the largest finite fp16; integers and flags ignore `poison`.

    A flag is True, because True lets a key in or keeps a weight: the value that does harm when it is read.
    """
    require(poison in POISONS, "poison", poison, "one of " + ", ".join(POISONS))
    if dtype.kind == "b":
        return True
    if dtype.kind in "iu":
        return INTEGER_POISON
    number = {"nan": math.nan, "inf": math.inf, "1e30": 1e30, "zero": 0.0}[poison]
    if dtype == np.float16 and number == 1e30:
        number = float(np.finfo(np.float16).max)
    return dtype.type(number)


def poisoned_buffer(elements: int, dtype: np.dtype[Any], poison: str) -> Array:
    """1-D buffer full of poison whose first element is aligned to ALIGNMENT_BYTES."""
    raw = np.empty(elements * dtype.itemsize + ALIGNMENT_BYTES, dtype=np.uint8)
    start = -raw.ctypes.data % ALIGNMENT_BYTES
    buffer = raw[start : start + elements * dtype.itemsize].view(dtype)
    buffer[:] = poison_value(dtype, poison)
    return buffer


def copy_buffer(buffer: Array) -> Array:
    """Equal buffer with the same alignment."""
    copy = poisoned_buffer(buffer.size, buffer.dtype, "zero")
    copy[:] = buffer
    return copy


def _reach(placement: Placement) -> int:
    """Elements from the first to the last of the view, both included."""
    if 0 in placement.shape:
        return 0
    return 1 + sum((extent - 1) * step for extent, step in zip(placement.shape, placement.strides, strict=True))


def _row_major(shape: Shape) -> Shape:
    steps, step = [], 1
    for extent in reversed(shape):
        steps.append(step)
        step *= extent
    return tuple(reversed(steps))


def _place_packed(shape: Shape, slot: int) -> Placement:
    batch, seqlen, nheads, head_dim = shape
    strides = _row_major((batch, seqlen, 3, nheads, head_dim))
    return Placement(
        buffer="qkv",
        offset=GUARD_ELEMENTS + slot * nheads * head_dim,
        shape=shape,
        strides=(strides[0], strides[1], strides[3], strides[4]),
    )


def _strides(layout: str, name: str, shape: Shape) -> Shape:
    if name in OPERANDS and layout == "bhsd":
        batch, seqlen, nheads, head_dim = shape
        by_batch, by_head, by_row, by_dim = _row_major((batch, nheads, seqlen, head_dim))
        return by_batch, by_row, by_head, by_dim
    if name in ("k", "v") and layout == "broadcast":
        return (0, *_row_major(shape)[1:])
    if layout == "sliced" and name in OPERANDS:
        wide = [extent + gap for extent, gap in zip(shape[-3:], SLICED_GAPS[name], strict=True)]
        return _row_major((*shape[:-3], *wide))
    if layout == "strided" and name in OPERANDS:
        return tuple(ELEMENT_STEP * step for step in _row_major(shape))
    if layout == "sliced" and name in ("mask", "bias"):
        return _row_major((*shape[:-1], shape[-1] + SLICED_ROW_GAP))
    return _row_major(shape)
