"""Impostors that a single call may not give away: they cache, remember, special-case, or play with the arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from verify.candidate import Call, Candidate, RefusedError, Reply, Route
from verify.candidates.numpy_tiled import build as build_honest
from verify.dtypes import float_format

Outputs = dict[str, Any]
Trick = Callable[["Cheat", Call], Outputs]

_TRICKS: dict[str, Trick] = {}
_HONEST_CALLS = 3


class Cheat:
    """An honest candidate behind one trick. It declares what the honest one declares."""

    def __init__(self, name: str, trick: Trick) -> None:
        self.name = f"impostor:{name}"
        self.honest: Candidate = build_honest()
        self.contract = self.honest.contract
        self.description = (trick.__doc__ or "").strip()
        """The trick, in one line."""
        self.memory: dict[Any, Outputs] = {}
        """What it keeps between calls."""
        self.calls = 0
        self._trick = trick

    def unavailable(self) -> str | None:
        """None: the honest candidate needs NumPy only."""
        return None

    def run(self, call: Call) -> Reply:
        """The reply after the trick."""
        self.calls += 1
        return Reply(outputs=self._trick(self, call), route=Route(backend=self.name))

    def honestly(self, call: Call) -> Outputs:
        """Outputs of the honest candidate."""
        return dict(self.honest.run(call).outputs)


def cheat_names() -> tuple[str, ...]:
    """Names that `build_cheat` knows."""
    return tuple(_TRICKS)


def build_cheat(name: str) -> Cheat:
    """The cheat of that name."""
    return Cheat(name, _TRICKS[name])


def _trick(function: Trick) -> Trick:
    _TRICKS[function.__name__] = function
    return function


def _shapes(call: Call) -> tuple[Any, ...]:
    return (call.backward, *((name, array.shape, array.dtype.name) for name, array in sorted(call.arrays.items())))


@_trick
def cached_by_shape(cheat: Cheat, call: Call) -> Outputs:
    """A result cache keyed by shapes: the second question of a shape gets the first answer."""
    return cheat.memory.setdefault(_shapes(call), cheat.honestly(call))


@_trick
def cached_by_address(cheat: Cheat, call: Call) -> Outputs:
    """A result cache keyed by the address of q: new values in the same memory get the old answer."""
    return cheat.memory.setdefault((call.arrays["q"].ctypes.data, _shapes(call)), cheat.honestly(call))


@_trick
def cached_by_first_query(cheat: Cheat, call: Call) -> Outputs:
    """A result cache keyed by the bytes of q alone: other keys and values get the old answer."""
    return cheat.memory.setdefault((call.arrays["q"].tobytes(), _shapes(call)), cheat.honestly(call))


@_trick
def constant_noise(cheat: Cheat, call: Call) -> Outputs:
    """Numbers of the right size that depend on the shape only."""
    outputs = cheat.honestly(call)
    rng = np.random.Generator(np.random.PCG64(0))
    return {name: rng.normal(0, 0.3, array.shape).astype(array.dtype) for name, array in outputs.items()}


@_trick
def mixes_previous_result(cheat: Cheat, call: Call) -> Outputs:
    """An accumulator that is not cleared: an eighth of the last answer of the same shapes is added."""
    outputs = cheat.honestly(call)
    previous = cheat.memory.get(_shapes(call))
    cheat.memory[_shapes(call)] = {name: array.copy() for name, array in outputs.items()}
    if previous is not None:
        outputs["out"] = (outputs["out"].astype(np.float32) + previous["out"].astype(np.float32) / 8).astype(
            outputs["out"].dtype
        )
    return outputs


@_trick
def honest_at_first(cheat: Cheat, call: Call) -> Outputs:
    """Right for the first calls, as long as somebody checks; zeros afterwards."""
    outputs = cheat.honestly(call)
    return outputs if cheat.calls <= _HONEST_CALLS else {name: np.zeros_like(a) for name, a in outputs.items()}


@_trick
def fast_path_for_full_tiles(cheat: Cheat, call: Call) -> Outputs:
    """A fast path for 64 keys at a time that is taken whatever the length: the keys of the last tile are not read."""
    p = call.problem
    outputs = cheat.honestly(call)
    if p.is_ragged or p.page_size or p.seqlen_k <= 64 or p.seqlen_k % 64 == 0:
        return outputs
    keys = np.arange(p.seqlen_k) < p.seqlen_k // 64 * 64
    shape = (p.batch, p.nheads, p.seqlen_q, p.seqlen_k)
    given = call.arrays.get("mask", np.ones((1, 1, 1, 1), dtype=bool))
    return cheat.honestly(replace(call, arrays={**call.arrays, "mask": np.broadcast_to(keys & given, shape)}))


@_trick
def first_sequence_for_all(cheat: Cheat, call: Call) -> Outputs:
    """Benchmarks repeat one sequence: out of the first one serves the whole batch."""
    outputs = cheat.honestly(call)
    if not call.problem.is_ragged:
        outputs["out"] = np.broadcast_to(outputs["out"][:1], outputs["out"].shape).copy()
    return outputs


@_trick
def gradients_are_zero(cheat: Cheat, call: Call) -> Outputs:
    """A backward that nobody wrote: right shapes, all zeros."""
    outputs = cheat.honestly(call)
    return {name: np.zeros_like(a) if name.startswith("d") and a.dtype != bool else a for name, a in outputs.items()}


@_trick
def narrower_inside(cheat: Cheat, call: Call) -> Outputs:
    """Speed from a narrower format: q, k and v pass through one with a third of the bits of precision."""
    form = float_format(call.problem.dtype)
    kept = {name: _narrowed(call.arrays[name], form.name) for name in ("q", "k", "v")}
    return cheat.honestly(replace(call, arrays={**call.arrays, **kept}))


@_trick
def lazy_outputs(cheat: Cheat, call: Call) -> Outputs:
    """Outputs that are computed when they are looked at, after the clock has stopped."""
    return {name: (value for value in [array]) for name, array in cheat.honestly(call).items()}


@_trick
def writes_into_gaps(cheat: Cheat, call: Call) -> Outputs:
    """Full vectors are stored although the rows of q are shorter: the memory after a row is overwritten."""
    q = call.arrays["q"]
    if q.size and q.strides[-1] == q.itemsize and q.strides[-2] > q.shape[-1] * q.itemsize:
        shape = (*q.shape[:-1], q.shape[-1] + 1)
        wider = np.lib.stride_tricks.as_strided(q, shape, q.strides)
        wider[..., :1, -1] = 1.0
    return cheat.honestly(call)


@_trick
def refuses_what_it_declares(cheat: Cheat, call: Call) -> Outputs:
    """Declines the hard cases that it promises to take: those with more than 64 keys."""
    if call.problem.seqlen_k > 64:
        raise RefusedError(f"seqlen_k={call.problem.seqlen_k}: this kernel takes up to 64")
    return cheat.honestly(call)


@_trick
def dlse_dropped(cheat: Cheat, call: Call) -> Outputs:
    """The gradient of lse is accepted and ignored."""
    return cheat.honestly(replace(call, with_dlse=False))


def _narrowed(array: Any, dtype: str) -> Any:
    """The array with 8 bits of precision if fp32, 4 if fp16 or bf16."""
    mantissa, exponent = np.frexp(array.astype(np.float32))
    steps = np.float32(2 ** (8 if dtype == "fp32" else 4))
    return np.ldexp(np.rint(mantissa * steps) / steps, exponent).astype(array.dtype)
