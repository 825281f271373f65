"""Wrong candidates on purpose: an honest kernel with one fault each, of kinds met in real kernels.

The checks must reject every one of them; an impostor never weakens what it declares.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from verify.candidate import Array, Call, Candidate, Reply, Route, contiguous
from verify.candidates.numpy_tiled import build as build_honest
from verify.detection.cheats import Cheat, build_cheat, cheat_names
from verify.dtypes import float_format
from verify.errors import require
from verify.problem import AttentionProblem

Outputs = dict[str, Array]
Fault = Callable[["Impostor", Call], Outputs]

_FAULTS: dict[str, Fault] = {}
_NEARLY_ZERO_SCALE = 1e-30
"""A softmax scale that makes every score vanish."""


class Impostor:
    """An honest candidate whose reply passes through one fault. It declares what the honest one declares."""

    def __init__(self, name: str, fault: Fault) -> None:
        self.name = f"impostor:{name}"
        self.honest: Candidate = build_honest()
        self.contract = self.honest.contract
        self.description = (fault.__doc__ or "").strip()
        """The real fault that it models, in one line."""
        self.memory: dict[str, Outputs] = {}
        """What the fault keeps between calls."""
        self._fault = fault

    def unavailable(self) -> str | None:
        """None: the honest candidate needs NumPy only."""
        return None

    def run(self, call: Call) -> Reply:
        """The faulty reply."""
        return Reply(outputs=self._fault(self, call), route=Route(backend=self.name))

    def honestly(self, call: Call) -> Outputs:
        """Outputs of the honest candidate."""
        return dict(self.honest.run(call).outputs)


def impostor_names() -> tuple[str, ...]:
    """Names of the impostors that are wrong on a single call; `build` also knows the cheats."""
    return tuple(_FAULTS)


def build(name: str) -> Impostor | Cheat:
    """The impostor or cheat of that name.

    Raises
    ------
    UsageError
        For an unknown name; the message lists the known ones.
    """
    if name in cheat_names():
        return build_cheat(name)
    require(name in _FAULTS, "impostor", name, "one of " + ", ".join((*_FAULTS, *cheat_names())))
    return Impostor(name, _FAULTS[name])


def _fault(function: Fault) -> Fault:
    _FAULTS[function.__name__] = function
    return function


@_fault
def zeros(impostor: Impostor, call: Call) -> Outputs:
    """A launch that silently failed: the outputs are the zeros they were allocated with."""
    return {name: np.zeros_like(array) for name, array in impostor.honestly(call).items()}


@_fault
def all_nan(impostor: Impostor, call: Call) -> Outputs:
    """An unguarded inf - inf: every output is NaN, which `max(abs(diff)) < tolerance` written backwards lets pass."""
    return {name: np.full_like(array, np.nan) for name, array in impostor.honestly(call).items()}


@_fault
def one_nan(impostor: Impostor, call: Call) -> Outputs:
    """A lone uninitialised register: one NaN in the middle of out."""
    outputs = impostor.honestly(call)
    outputs["out"].reshape(-1)[outputs["out"].size // 2 : outputs["out"].size // 2 + 1] = np.nan
    return outputs


@_fault
def nan_swallowed(impostor: Impostor, call: Call) -> Outputs:
    """A maximum that ignores NaN: a row with NaN scores comes out as zeros."""
    outputs = impostor.honestly(call)
    return {name: np.where(np.isnan(array), array.dtype.type(0), array) for name, array in outputs.items()}


@_fault
def mean_of_v(impostor: Impostor, call: Call) -> Outputs:
    """Scores and masks lost before the softmax: every row is the mean of all values of its sequence."""
    outputs = impostor.honestly(call)
    blind = replace(call.problem, causal=False, window=None, softcap=0.0, sink=False, softmax_scale=_NEARLY_ZERO_SCALE)
    hidden = ("mask", "block_mask", "bias", "alibi_slopes", "sink", "dropout_keep")
    arrays = {name: array for name, array in call.arrays.items() if name not in hidden}
    return outputs | {"out": impostor.honestly(Call(problem=blind, arrays=arrays, backward=False))["out"]}


@_fault
def dead_rows_mean(impostor: Impostor, call: Call) -> Outputs:
    """A finite mask value: a row with nothing to attend to becomes the mean of the values instead of 0."""
    outputs = impostor.honestly(call)
    dead = np.moveaxis(outputs["lse"], -2, -1)[..., None] == -np.inf
    return outputs | {"out": np.where(dead, mean_of_v(impostor, call)["out"], outputs["out"])}


@_fault
def uniform_attention(impostor: Impostor, call: Call) -> Outputs:
    """Q K^T never reaches the softmax: all visible keys weigh the same."""
    return impostor.honestly(_with_scale(call, _NEARLY_ZERO_SCALE))


@_fault
def scale_1pct(impostor: Impostor, call: Call) -> Outputs:
    """A constant rounded by hand: the softmax scale is 1 % too large."""
    return impostor.honestly(_with_scale(call, call.problem.softmax_scale * 1.01))


@_fault
def last_key_dropped(impostor: Impostor, call: Call) -> Outputs:
    """A loop bound of seqlen_k - 1: the last key of every sequence is never read."""
    return impostor.honestly(_hiding(call, _all_but_last_key(call.problem)))


@_fault
def mask_off_by_one(impostor: Impostor, call: Call) -> Outputs:
    """`<` for `<=`: the diagonal, or a given mask, is shifted by one key; without either the last key is hidden."""
    p = call.problem
    if p.causal or p.window is not None:
        unmasked = replace(call, problem=replace(p, causal=False, window=None))
        return impostor.honestly(_hiding(unmasked, _diagonal_keep(p, shift=-1)))
    if "mask" in call.arrays:
        return impostor.honestly(_with_array(call, "mask", np.roll(call.arrays["mask"], 1, axis=-1)))
    return last_key_dropped(impostor, call)


@_fault
def swapped_alignment(impostor: Impostor, call: Call) -> Outputs:
    """Causality measured from the other corner, as between versions 2.0 and 2.1 of flash-attn."""
    other = "top_left" if call.problem.alignment == "bottom_right" else "bottom_right"
    return impostor.honestly(replace(call, problem=replace(call.problem, alignment=other)))


@_fault
def base2_lse(impostor: Impostor, call: Call) -> Outputs:
    """lse handed out in the unit of exp2, as the Triton tutorial keeps it."""
    outputs = impostor.honestly(call)
    return outputs | {"lse": outputs["lse"] * np.float32(1.4426950408889634)}


@_fault
def wrong_kv_head(impostor: Impostor, call: Call) -> Outputs:
    """Query head h reads key/value head h % nheads_kv instead of h // group."""
    p = call.problem
    heads = np.arange(p.nheads) % p.nheads_kv
    outputs = impostor.honestly(_expanded(call, heads))
    for name in ("dk", "dv"):
        if name in outputs:
            total = np.zeros(call.arrays[name[1:]].shape, dtype=np.float32)
            np.add.at(np.moveaxis(total, -2, 0), heads, np.moveaxis(outputs[name].astype(np.float32), -2, 0))
            outputs[name] = total.astype(outputs[name].dtype)
    return outputs


@_fault
def group_not_summed(impostor: Impostor, call: Call) -> Outputs:
    """Query heads of a group overwrite each other: dk and dv are those of its last head alone."""
    p = call.problem
    outputs = impostor.honestly(_expanded(call, np.arange(p.nheads) // p.group))
    last = {name: contiguous(outputs[name][..., p.group - 1 :: p.group, :]) for name in ("dk", "dv") if call.backward}
    return outputs | last


@_fault
def stale_output(impostor: Impostor, call: Call) -> Outputs:
    """A reused workspace: the reply is that of the previous call of the same shapes, zeros at first."""
    outputs = impostor.honestly(call)
    key = repr([(name, array.shape, array.dtype.name) for name, array in outputs.items()])
    previous = impostor.memory.get(key)
    impostor.memory[key] = {name: array.copy() for name, array in outputs.items()}
    return previous if previous is not None else {name: np.zeros_like(array) for name, array in outputs.items()}


@_fault
def permuted_rows(impostor: Impostor, call: Call) -> Outputs:
    """A write at the wrong row: out is rotated by one row along the sequence."""
    outputs = impostor.honestly(call)
    return outputs | {"out": np.roll(outputs["out"], 1, axis=-3)}


@_fault
def dropped_delta(impostor: Impostor, call: Call) -> Outputs:
    """dS = P*dP: the backward forgets rowsum(dO*O)."""
    if not call.backward:
        return impostor.honestly(call)
    out = impostor.honestly(replace(call, backward=False))["out"].astype(np.float32)
    delta = np.moveaxis((call.arrays["dout"].astype(np.float32) * out).sum(axis=-1), -1, -2)
    # A gradient of lse enters dS beside -delta, so one that equals delta removes it.
    dlse = delta + call.arrays["dlse"] if call.with_dlse else delta
    return impostor.honestly(replace(_with_array(call, "dlse", dlse), with_dlse=True))


@_fault
def no_scale_dk(impostor: Impostor, call: Call) -> Outputs:
    """A scale applied once too few: dK = dS^T Q, without the softmax scale that dQ has."""
    outputs = impostor.honestly(call)
    if "dk" in outputs:
        unscaled = outputs["dk"].astype(np.float32) / np.float32(call.problem.softmax_scale)
        outputs["dk"] = unscaled.astype(outputs["dk"].dtype)
    return outputs


@_fault
def out_truncated(impostor: Impostor, call: Call) -> Outputs:
    """A store that drops bits instead of rounding: out in fp16 or bf16 is truncated toward zero (fp32: no fault)."""
    outputs = impostor.honestly(call)
    if call.problem.dtype == "fp32":
        return outputs
    exact = build_honest("out_fp32").run(replace(call, backward=False)).outputs["out"]
    nearest = exact.astype(float_format(call.problem.dtype).numpy_dtype)
    too_far = np.abs(nearest.astype(np.float32)) > np.abs(exact)
    # One less in the bits of a sign-magnitude format is the next value toward zero.
    bits = nearest.view(np.uint16) - too_far.astype(np.uint16)
    return outputs | {"out": bits.view(nearest.dtype)}


@_fault
def dtype_swapped(impostor: Impostor, call: Call) -> Outputs:
    """A forgotten cast: out in fp32, or in fp64 for fp32 inputs."""
    outputs = impostor.honestly(call)
    wider = np.float64 if call.problem.dtype == "fp32" else np.float32
    return outputs | {"out": outputs["out"].astype(wider)}


@_fault
def wrong_shape(impostor: Impostor, call: Call) -> Outputs:
    """Heads before rows: out in the order (batch, nheads, seqlen_q, head_dim_v)."""
    outputs = impostor.honestly(call)
    return outputs | {"out": contiguous(np.swapaxes(outputs["out"], -2, -3))}


@_fault
def mutates_inputs(impostor: Impostor, call: Call) -> Outputs:
    """The scale folded into q in place: the answer is right and the caller's q is spoilt."""
    outputs = impostor.honestly(call)
    q = call.arrays["q"]
    q[...] = (q.astype(np.float32) * np.float32(0.5 * call.problem.softmax_scale)).astype(q.dtype)
    return outputs


@_fault
def returns_input_view(impostor: Impostor, call: Call) -> Outputs:
    """An in-place update that never happened: out is the memory of q."""
    outputs, q = impostor.honestly(call), call.arrays["q"]
    same = q.shape == outputs["out"].shape
    return outputs | {"out": q if same else np.broadcast_to(q[..., :1], outputs["out"].shape)}


def _with_scale(call: Call, scale: float) -> Call:
    return replace(call, problem=replace(call.problem, softmax_scale=scale))


def _with_array(call: Call, name: str, array: Array) -> Call:
    return replace(call, arrays={**call.arrays, name: array})


def _hiding(call: Call, keep: NDArray[np.bool_]) -> Call:
    """The call with a keep-mask (batch, 1, seqlen_q, seqlen_k) joined to what it has; numpy_tiled reads any mask."""
    p = call.problem
    given = call.arrays.get("mask", np.ones((1, 1, 1, 1), dtype=bool))
    shape = (p.batch, p.nheads, p.seqlen_q, p.seqlen_k)
    return _with_array(call, "mask", np.broadcast_to(keep & given, shape))


def _all_but_last_key(p: AttentionProblem) -> NDArray[np.bool_]:
    keys = np.arange(p.seqlen_k)
    last = np.array([p.lengths(sequence)[1] - 1 for sequence in range(p.batch)])
    keep: NDArray[np.bool_] = (keys != last[:, None])[:, None, None, :]
    return keep


def _diagonal_keep(p: AttentionProblem, *, shift: int) -> NDArray[np.bool_]:
    """Causal and window mask whose diagonal is moved by `shift` keys, bool (batch, 1, seqlen_q, seqlen_k)."""
    rows, keys = np.arange(p.seqlen_q)[:, None], np.arange(p.seqlen_k)
    left, right = p.window if p.window is not None else (None, None)
    keep = np.ones((p.batch, 1, p.seqlen_q, p.seqlen_k), dtype=bool)
    for sequence in range(p.batch):
        seqlen_q, seqlen_k = p.lengths(sequence)
        offset = seqlen_k - seqlen_q if p.alignment == "bottom_right" else 0
        distance = rows + offset + shift - keys
        for bounded, inside in (
            (p.causal, distance >= 0),
            (right is not None, distance >= -(right or 0)),
            (left is not None, distance <= (left or 0)),
        ):
            if bounded:
                keep[sequence, 0] &= inside
    return keep


def _expanded(call: Call, heads: NDArray[np.int64]) -> Call:
    """The call with one key/value head for each query head, taken from the given ones."""
    problem = replace(call.problem, nheads_kv=call.problem.nheads)
    arrays = {**call.arrays, **{name: call.arrays[name][..., heads, :] for name in ("k", "v")}}
    return replace(call, problem=problem, arrays=arrays)
