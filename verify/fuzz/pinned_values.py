"""Simpler values than given ones: deleted rows, keys, channels and heads, zeros, small integers. Pure.

Works on the padded fp64 operands of a case, so that what is left keeps its values while the shape shrinks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from verify.case import Case
from verify.errors import UsageError
from verify.inputs import round_to
from verify.problem import AttentionProblem, default_scale
from verify.recipes import design
from verify.recipes.pinned import OPERANDS, pinned_recipe

Float64 = NDArray[np.float64]
Values = Mapping[str, Float64]

MAX_ID_LENGTH = 30_000
"""Longest case id that is still tried; beyond it the values stay with their recipe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned:
    """A case with its operands at hand."""

    case: Case
    values: Values
    """q, k, v, dout, padded, exact in the storage dtype."""

    @property
    def nonzero(self) -> int:
        """Values of q and k that are not zero."""
        return int(np.count_nonzero(self.values["q"]) + np.count_nonzero(self.values["k"]))


def pin(case: Case) -> Pinned | None:
    """The same case with its operands written out, bit for bit; None when that is too long.

    A sink may move by a quarter: it is placed by the scores of the operands before they were rounded.
    """
    operands = design(case)
    values = {name: round_to(getattr(operands, name), case.problem.dtype).astype(np.float64) for name in OPERANDS}
    return _pinned(case, case.problem, values)


def pins(case: Case) -> Iterator[Pinned]:
    """The case with its values written out, then with coarser ones, which are shorter."""
    exact = pin(case)
    if exact is not None:
        yield exact
    operands = design(case)
    for design_of in (np.rint, _signs_and_zeros):
        values = {name: design_of(getattr(operands, name)) + 0.0 for name in OPERANDS}
        rounded = _pinned(case, case.problem, values)
        if rounded is not None:
            yield rounded


def _signs_and_zeros(array: Float64) -> Float64:
    return np.clip(np.rint(array), -1, 1)


def simpler_values(pinned: Pinned) -> Iterator[Pinned]:
    """Cases one step simpler in their values or with parts deleted, the largest steps first."""
    for step in (_whole_tensors, _deleted_parts, _rounded, _zeroed, _small_elements):
        yield from step(pinned)


def _pinned(case: Case, problem: AttentionProblem, values: Values) -> Pinned | None:
    rounded = {name: round_to(array, problem.dtype).astype(np.float64) for name, array in values.items()}
    other = replace(case, problem=problem, recipe=pinned_recipe(rounded))
    return Pinned(case=other, values=rounded) if len(other.case_id) <= MAX_ID_LENGTH else None


def _with(pinned: Pinned, changed: Values) -> Iterator[Pinned]:
    """The case with some tensors replaced, when any of them is really another."""
    if all(np.array_equal(array, pinned.values[name]) for name, array in changed.items()):
        return
    other = _pinned(pinned.case, pinned.case.problem, {**pinned.values, **changed})
    if other is not None:
        yield other


def _whole_tensors(pinned: Pinned) -> Iterator[Pinned]:
    """A tensor that plays no part becomes zero, or one everywhere."""
    for name in ("dout", "q", "k", "v"):
        array = pinned.values[name]
        if array.any():
            yield from _with(pinned, {name: np.zeros_like(array)})
            if not (array == 1).all():
                yield from _with(pinned, {name: np.ones_like(array)})


def _rounded(pinned: Pinned) -> Iterator[Pinned]:
    """Small integers for all tensors, then for one after another; coarser first."""
    designs: tuple[Callable[[Float64], Float64], ...] = (
        _signs_and_zeros,
        lambda a: np.clip(np.rint(a), -3, 3),
        np.rint,
        lambda a: np.rint(2 * a) / 2,
    )
    groups: tuple[tuple[str, ...], ...] = (OPERANDS, *((name,) for name in OPERANDS))
    for names in groups:
        for function in designs:
            # + 0.0 turns the -0 of a rounded small number into 0.
            yield from _with(pinned, {name: function(pinned.values[name]) + 0.0 for name in names})


def _zeroed(pinned: Pinned) -> Iterator[Pinned]:
    """Runs of the non-zero elements set to zero: halves, quarters, down to single ones."""
    for name in OPERANDS:
        array = pinned.values[name]
        places = np.flatnonzero(array)
        for chosen in _runs(len(places)):
            smaller = array.copy()
            smaller.ravel()[places[chosen]] = 0.0
            yield from _with(pinned, {name: smaller})


def _small_elements(pinned: Pinned) -> Iterator[Pinned]:
    """Single elements replaced by +-1, or by a shorter number."""
    for name in OPERANDS:
        array = pinned.values[name]
        for place in np.flatnonzero(array)[:32]:
            value = float(array.ravel()[place])
            for simple in (1.0, float(np.sign(value)), float(np.rint(value)), float(np.float32(f"{value:.1g}"))):
                # Only shorter texts, so that the search ends.
                if simple != 0 and _length(simple) < _length(value):
                    other = array.copy()
                    other.ravel()[place] = simple
                    yield from _with(pinned, {name: other})


def _length(value: float) -> int:
    return len(str(np.float32(value)))


def _deleted_parts(pinned: Pinned) -> Iterator[Pinned]:
    """Keys, rows, channels, heads and sequences taken out together with their values."""
    p = pinned.case.problem
    if p.is_ragged or p.seqlens_k is not None or p.layout == "packed_qkv":
        return
    for axis, extent, names, fields in (
        (0, p.batch, OPERANDS, ("batch",)),
        (1, p.seqlen_k, ("k", "v"), ("seqlen_k",)),
        (1, p.seqlen_q, ("q", "dout"), ("seqlen_q",)),
        (3, p.head_dim, ("q", "k"), ("head_dim",)),
        (3, p.head_dim_v, ("v", "dout"), ("head_dim_v",)),
    ):
        for chosen in _runs(extent):
            if len(chosen) < extent:
                yield from _without(pinned, axis, chosen, names, fields)
    if p.head_dim == p.head_dim_v:
        for chosen in _runs(p.head_dim):
            if len(chosen) < p.head_dim:
                yield from _without(pinned, 3, chosen, OPERANDS, ("head_dim", "head_dim_v"))
    if p.nheads_kv > 1:
        yield from _fewer_kv_heads(pinned)


def _without(
    pinned: Pinned, axis: int, chosen: NDArray[np.intp], names: tuple[str, ...], fields: tuple[str, ...]
) -> Iterator[Pinned]:
    values = {**pinned.values, **{name: np.delete(pinned.values[name], chosen, axis=axis) for name in names}}
    extent = values[names[0]].shape[axis]
    yield from _reshaped(pinned, values, dict.fromkeys(fields, extent))


def _fewer_kv_heads(pinned: Pinned) -> Iterator[Pinned]:
    p = pinned.case.problem
    for head in range(p.nheads_kv):
        group = np.arange(head * p.group, (head + 1) * p.group)
        values = {name: np.delete(pinned.values[name], group, axis=2) for name in ("q", "dout")}
        values |= {name: np.delete(pinned.values[name], head, axis=2) for name in ("k", "v")}
        yield from _reshaped(pinned, values, {"nheads": p.nheads - p.group, "nheads_kv": p.nheads_kv - 1})


def _reshaped(pinned: Pinned, values: Values, fields: Mapping[str, int]) -> Iterator[Pinned]:
    p = pinned.case.problem
    changes: dict[str, int | float] = dict(fields)
    if "head_dim" in fields and p.softmax_scale == default_scale(p.head_dim):
        changes["softmax_scale"] = default_scale(fields["head_dim"])
    try:
        problem = replace(p, **changes)  # type: ignore[arg-type]
    except UsageError:
        return
    other = _pinned(pinned.case, problem, values)
    if other is not None:
        yield other


def _runs(extent: int) -> Iterator[NDArray[np.intp]]:
    """Index runs that cover 0..extent-1: all of it, halves, quarters, ..., single ones."""
    length = extent
    while length >= 1:
        for start in range(0, extent, length):
            yield np.arange(start, min(start + length, extent))
        length = length // 2 if length > 1 else 0
