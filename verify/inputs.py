"""Turns a Case into the arrays of a Call: values rounded to the storage dtype, laid out in poisoned buffers.

Values are drawn once in logical order, so that layout, packing and paging never change them. Judges nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verify.case import Case
from verify.dtypes import float_format
from verify.errors import require
from verify.extras import draw_extras, page_count
from verify.layouts import Placement, buffer_sizes, copy_buffer, place, poison_value, poisoned_buffer, view
from verify.problem import AttentionProblem
from verify.recipes import Draw, design

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Arrays of one case and the memory under them."""

    problem: AttentionProblem
    arrays: Mapping[str, Array]
    """Views in logical shape, as in verify.candidate.Call."""
    buffers: Mapping[str, Array]
    """1-D base buffers, one an array, or `qkv` for the three packed ones; gaps and guards hold poison."""
    placements: Mapping[str, Placement]
    """Where each array lies: `layouts.view(buffers[p.buffer], p)` rebuilds it over any copy of its buffer."""

    def digest(self) -> str:
        """SHA-256 over names, dtypes, shapes and values of the arrays, in logical order: independent of the layout."""
        return _digest(self.arrays)

    def buffer_digest(self) -> str:
        """SHA-256 over the whole buffers, guards and gaps included."""
        return _digest(self.buffers)

    def copy(self) -> Inputs:
        """Equal inputs over buffers of their own."""
        buffers = {name: copy_buffer(buffer) for name, buffer in self.buffers.items()}
        arrays = {name: view(buffers[at.buffer], at) for name, at in self.placements.items()}
        return Inputs(problem=self.problem, arrays=arrays, buffers=buffers, placements=self.placements)


def make_inputs(case: Case, *, poison: str = "nan") -> Inputs:
    """Inputs of a case. `poison` fills what no kernel may use: guards, gaps, keys beyond seqlens_k, unused pages.

    Raises
    ------
    UsageError
        For an unknown recipe, recipe parameter or poison.
    """
    return lay_out(case.problem, draw_values(case, poison=poison), poison=poison)


def draw_values(case: Case, *, poison: str = "nan") -> dict[str, Array]:
    """Logical values of every array of the case, contiguous and in their final dtype, before any layout."""
    problem = case.problem
    draw = Draw(problem=problem, seed=case.seed)
    operands = design(case)
    extras = draw_extras(draw, operands, poison=poison)
    keys = {"k": operands.k, "v": operands.v}
    values = {"q": _pack(problem.cu_seqlens_q, round_to(operands.q, problem.dtype))}
    for name, padded in keys.items():
        rounded = round_to(padded, problem.dtype)
        if problem.is_ragged:
            values[name] = _pack(problem.cu_seqlens_k, rounded)
        elif problem.page_size:
            values[name] = _to_pages(problem, rounded, extras["page_table"], poison)
        else:
            values[name] = _poison_padding(problem, rounded, poison)
    values["dout"] = _pack(problem.cu_seqlens_q, round_to(operands.dout, problem.dtype))
    return values | extras


def lay_out(problem: AttentionProblem, values: Mapping[str, Array], *, poison: str = "nan") -> Inputs:
    """Inputs with the given logical values in the layout of the problem, over fresh poisoned buffers.

    Raises
    ------
    UsageError
        k or v differ between sequences although the layout shares one sequence among all.
    """
    placements = place(problem, {name: array.shape for name, array in values.items()})
    dtypes = {placements[name].buffer: array.dtype for name, array in values.items()}
    buffers = {name: poisoned_buffer(size, dtypes[name], poison) for name, size in buffer_sizes(placements).items()}
    arrays = {name: view(buffers[at.buffer], at) for name, at in placements.items()}
    for name, array in arrays.items():
        array[...] = values[name]
        if problem.layout == "broadcast" and name in ("k", "v"):
            shared = array.tobytes() == np.ascontiguousarray(values[name]).tobytes()
            require(shared, "layout", "broadcast", f"the same {name} in every sequence")
    return Inputs(problem=problem, arrays=arrays, buffers=buffers, placements=placements)


def round_to(values: NDArray[Any], dtype: str) -> Array:
    """Values in the storage dtype: to fp32, then to the dtype, each to nearest even.

    Finite values beyond the largest finite number of the dtype saturate to it; NaN and infinities stay.
    """
    form = float_format(dtype)
    # The two-step rounding is part of the definition of the inputs (which are exact by definition), and the same on
    # every machine: a direct cast from fp64 to bf16 is not specified to round once.
    limit = np.float64(form.max_finite)
    clipped = np.where(np.isfinite(values), np.clip(values, -limit, limit), values)
    with np.errstate(under="ignore"):
        rounded: Array = clipped.astype(np.float32).astype(form.numpy_dtype)
    return rounded


def _digest(arrays: Mapping[str, Array]) -> str:
    sha = hashlib.sha256()
    for name in sorted(arrays):
        array = arrays[name]
        sha.update(f"{name}:{array.dtype}:{array.shape};".encode())
        sha.update(np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()


def _pack(cu_seqlens: tuple[int, ...] | None, padded: Array) -> Array:
    """(batch, seqlen, heads, dim) -> (total, heads, dim) when ragged."""
    if cu_seqlens is None:
        return padded
    lengths = np.diff(cu_seqlens)
    return np.concatenate([padded[sequence, :length] for sequence, length in enumerate(lengths)])


def _poison_padding(problem: AttentionProblem, padded: Array, poison: str) -> Array:
    if problem.seqlens_k is not None:
        # With one sequence shared by all, only what lies beyond the longest of them is padding.
        shared = max(problem.seqlens_k) if problem.layout == "broadcast" else 0
        for sequence, length in enumerate(problem.seqlens_k):
            padded[sequence, max(length, shared) :] = poison_value(padded.dtype, poison)
    return padded


def _to_pages(problem: AttentionProblem, padded: Array, table: Array, poison: str) -> Array:
    """Scatter each sequence over its pages; what no sequence uses stays poison."""
    size = problem.page_size
    shape = (page_count(problem), size, *padded.shape[2:])
    pages = np.full(shape, poison_value(padded.dtype, poison), dtype=padded.dtype)
    for sequence in range(problem.batch):
        keys = problem.lengths(sequence)[1]
        for slot, start in enumerate(range(0, keys, size)):
            block = padded[sequence, start : min(start + size, keys)]
            pages[table[sequence, slot], : len(block)] = block
    return pages
