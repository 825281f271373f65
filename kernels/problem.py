"""Checks q, k, v and the options against each other and turns them into the kernels' Problem struct.

Refuses bad input in one line before anything is compiled, allocated or launched. No arithmetic on tensors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernels.backend import Array, Backend, Operand
from kernels.dropout import drop_threshold
from kernels.kernel import Kernel
from kernels.options import Options
from kernels.params import PAIR_AXES, TENSOR_AXES, element_strides, fill_view

MAX_SEQLEN = 2**28
"""Rows and band limits stay below 2^28 and 2^29, so that their sums never leave a 32-bit int in the kernels."""
UNBOUNDED = 2**29

_WORD = 0xFFFFFFFF
_DTYPE_NAMES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "uint16": "bf16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Extents of one attention."""

    batch: int
    seqlen_q: int
    """Allotted rows; in the packed layout the longest sequence."""
    seqlen_k: int
    nheads: int
    nheads_kv: int
    head_dim: int
    head_dim_v: int
    packed: bool
    total_q: int
    """Rows of q in the packed layout, else seqlen_q."""
    bias: tuple[int, int, int, int]
    """(batch, nheads, rows, columns) of the bias, 1 on broadcast axes; (0, 0, 0, 0) without bias."""

    @property
    def out_shape(self) -> tuple[int, ...]:
        tail = (self.nheads, self.head_dim_v)
        return (self.total_q, *tail) if self.packed else (self.batch, self.seqlen_q, *tail)

    @property
    def lse_shape(self) -> tuple[int, ...]:
        return (self.nheads, self.total_q) if self.packed else (self.batch, self.nheads, self.seqlen_q)

    @property
    def pair_shape(self) -> tuple[int, int, int, int]:
        return (self.batch, self.nheads, self.seqlen_q, self.seqlen_k)


def storage_dtype(array: Array, name: str) -> str:
    """fp32, fp16 or bf16. An array of uint16 holds the bits of bf16 (for array libraries without the type).

    Raises
    ------
    ValueError
        Another dtype.
    """
    found = str(array.dtype)
    if found not in _DTYPE_NAMES:
        raise ValueError(f"{name}: dtype {found}, expected float32, float16, bfloat16, or uint16 for bfloat16 bits")
    return _DTYPE_NAMES[found]


def require_shape(name: str, array: Array, shape: Sequence[int]) -> None:
    """Refuse another shape, in one line."""
    if tuple(array.shape) != tuple(shape):
        raise ValueError(f"{name}: shape {tuple(array.shape)}, expected {tuple(shape)}")


def require_dtype(name: str, array: Array, *expected: str) -> None:
    """Refuse another dtype, in one line."""
    if str(array.dtype) not in expected:
        raise ValueError(f"{name}: dtype {array.dtype}, expected {' or '.join(expected)}")


def require_broadcastable(name: str, array: Array, shape: tuple[int, ...]) -> None:
    """Refuse a shape that does not broadcast to `shape`, in one line."""
    found = tuple(array.shape)
    fits = len(found) <= len(shape) and all(
        size in (1, full) for size, full in zip(found, shape[len(shape) - len(found) :], strict=True)
    )
    if not fits:
        raise ValueError(f"{name}: shape {found}, expected one that broadcasts to {shape}")


def resolve_sizes(kernel: Kernel, backend: Backend, q: Array, k: Array, v: Array, options: Options) -> Sizes:
    """Extents of q, k, v and the options, checked against each other and the kernel's capabilities.

    Raises
    ------
    ValueError
        The first contradiction, in one line.
    """
    packed = options.cu_seqlens_q is not None
    expected_axes = 3 if packed else 4
    dtype = storage_dtype(q, "q")
    for name, array in (("q", q), ("k", k), ("v", v)):
        if array.ndim != expected_axes:
            layout = "(total, nheads, head_dim)" if packed else "(batch, seqlen, nheads, head_dim)"
            raise ValueError(f"{name}: shape {tuple(array.shape)}, expected {layout}")
        require_dtype(name, array, str(q.dtype))
    if dtype not in kernel.capabilities.dtypes:
        raise ValueError(f"q: dtype {dtype}, expected one of {', '.join(kernel.capabilities.dtypes)} for {kernel.name}")
    nheads, head_dim = q.shape[-2:]
    nheads_kv, head_dim_v = v.shape[-2:]
    batch, seqlen_q, seqlen_k = _lengths(backend, q, k, options) if packed else (q.shape[0], q.shape[1], k.shape[1])
    lead = k.shape[:1] if packed else (batch, seqlen_k)
    require_shape("k", k, (*lead, nheads_kv, head_dim))
    require_shape("v", v, (*lead, nheads_kv, head_dim_v))
    if nheads_kv < 1 or nheads % nheads_kv:
        raise ValueError(f"nheads: {nheads}, expected a multiple of nheads_kv={nheads_kv}")
    if min(head_dim, head_dim_v) < 1:
        raise ValueError(f"head_dim: {head_dim} and {head_dim_v} (v), expected at least 1")
    if max(seqlen_q, seqlen_k) >= MAX_SEQLEN:
        raise ValueError(f"seqlen: {max(seqlen_q, seqlen_k)}, expected less than {MAX_SEQLEN}")
    bias = (0, 0, 0, 0)
    if options.bias is not None:
        require_broadcastable("bias", options.bias, (batch, nheads, seqlen_q, seqlen_k))
        leading = (1,) * (4 - options.bias.ndim)
        bias = (*leading, *options.bias.shape)
    return Sizes(
        batch=batch,
        seqlen_q=seqlen_q,
        seqlen_k=seqlen_k,
        nheads=nheads,
        nheads_kv=nheads_kv,
        head_dim=head_dim,
        head_dim_v=head_dim_v,
        packed=packed,
        total_q=q.shape[0] if packed else seqlen_q,
        bias=bias,
    )


def _lengths(backend: Backend, q: Array, k: Array, options: Options) -> tuple[int, int, int]:
    """(batch, longest q, longest k) of the packed layout; reads cu_seqlens only where no maximum is given."""
    longest = []
    batch = options.cu_seqlens_q.shape[0] - 1  # type: ignore[union-attr]
    for name, cu, total, given in (
        ("cu_seqlens_q", options.cu_seqlens_q, q.shape[0], options.max_seqlen_q),
        ("cu_seqlens_k", options.cu_seqlens_k, k.shape[0], options.max_seqlen_k),
    ):
        require_dtype(name, cu, "int32")
        require_shape(name, cu, (batch + 1,))
        if batch < 0:
            raise ValueError(f"{name}: shape (0,), expected at least one entry")
        if given is not None:
            longest.append(given)
            continue
        bounds = backend.to_host(cu)
        steps = np.diff(bounds)
        if bounds[0] != 0 or bounds[-1] != total or (steps < 0).any():
            raise ValueError(f"{name}: {bounds.tolist()}, expected 0 to {total} without a decrease")
        longest.append(int(steps.max(initial=0)))
    return batch, longest[0], longest[1]


def check_options(sizes: Sizes, q: Array, options: Options) -> None:
    """Shapes and dtypes of the optional arrays.

    Raises
    ------
    ValueError
        The first contradiction, in one line.
    """
    storage = str(q.dtype)
    if options.keep_mask is not None:
        require_dtype("keep_mask", options.keep_mask, "bool", "uint8")
        require_broadcastable("keep_mask", options.keep_mask, sizes.pair_shape)
    if options.block_mask is not None and options.block_size is not None:
        rows, cols = options.block_size
        blocks = (-(-sizes.seqlen_q // rows), -(-sizes.seqlen_k // cols))
        require_dtype("block_mask", options.block_mask, "bool", "uint8")
        if tuple(options.block_mask.shape[-2:]) != blocks:
            raise ValueError(
                f"block_mask: shape {tuple(options.block_mask.shape)}, expected (..., {blocks[0]}, {blocks[1]})"
            )
        require_broadcastable("block_mask", options.block_mask, (sizes.batch, sizes.nheads, *blocks))
    if options.bias is not None:
        require_dtype("bias", options.bias, storage, "float32")
    if options.sink is not None:
        require_dtype("sink", options.sink, storage, "float32")
        require_shape("sink", options.sink, (sizes.nheads,))
    if options.alibi_slopes is not None:
        require_dtype("alibi_slopes", options.alibi_slopes, "float32")
        require_broadcastable("alibi_slopes", options.alibi_slopes, (sizes.batch, sizes.nheads))
    for name in ("seqlens_q", "seqlens_k"):
        lengths = getattr(options, name)
        if lengths is not None:
            require_dtype(name, lengths, "int32")
            require_shape(name, lengths, (sizes.batch,))


def band(options: Options) -> tuple[int, int]:
    """(left, right) keys visible around the diagonal; causality is a band with nothing on the right."""
    left, right = (UNBOUNDED if side is None else min(side, UNBOUNDED) for side in options.window)
    return left, 0 if options.causal else right


def fill_problem(p: Any, backend: Backend, sizes: Sizes, q: Array, k: Array, v: Array, options: Options) -> None:
    """Write the Problem struct `p`."""
    for name, array in (("q", q), ("k", k), ("v", v)):
        fill_tensor(p[name], backend, array, packed=sizes.packed)
    for name in ("keep_mask", "block_mask", "bias"):
        fill_view(p[name], backend, getattr(options, name), PAIR_AXES)
    for name in ("cu_seqlens_q", "cu_seqlens_k", "seqlens_q", "seqlens_k", "alibi_slopes", "sink"):
        array = getattr(options, name)
        p[name] = 0 if array is None else backend.address(array)
    if options.alibi_slopes is not None:
        p["alibi_batch"], p["alibi_head"] = (0, *element_strides(options.alibi_slopes))[-2:]
    if options.sink is not None:
        p["sink_head"] = options.sink.strides[0] // options.sink.dtype.itemsize
        p["sink_is_fp32"] = str(options.sink.dtype) == "float32"
    p["bias_is_fp32"] = options.bias is not None and str(options.bias.dtype) == "float32"
    for name in ("batch", "nheads", "nheads_kv", "head_dim", "head_dim_v", "seqlen_q", "seqlen_k"):
        p[name] = getattr(sizes, name)
    p["band_left"], p["band_right"] = band(options)
    p["bottom_right"] = options.alignment == "bottom_right"
    p["block_rows"], p["block_cols"] = options.block_size or (1, 1)
    scale = options.softmax_scale
    p["softmax_scale"] = 1.0 / math.sqrt(sizes.head_dim) if scale is None else scale
    p["softcap"] = options.softcap
    p["dropout_scale"] = 1.0 / (1.0 - options.dropout_p)
    fill_dropout(p, options.dropout_p, options.dropout_seed, options.dropout_offset)


def fill_dropout(p: Any, dropout_p: float, seed: int, offset: int) -> None:
    """Write the generator's fields of `p`."""
    p["drop_below"] = drop_threshold(dropout_p)
    p["seed_low"], p["seed_high"], p["dropout_offset"] = seed & _WORD, seed >> 32, offset


def fill_tensor(field: Any, backend: Backend, array: Array, *, packed: bool) -> None:
    """A tensor view; in the packed layout there is no batch axis and its stride is 0."""
    fill_view(field, backend, array, TENSOR_AXES[1:] if packed else TENSOR_AXES)


def option_operands(options: Options) -> tuple[Operand, ...]:
    """The optional arrays as read-only memory."""
    names = (
        "keep_mask", "block_mask", "bias", "alibi_slopes", "sink",
        "cu_seqlens_q", "cu_seqlens_k", "seqlens_q", "seqlens_k",
    )  # fmt: skip
    return tuple(
        Operand(name=name, array=array, writable=False, initialised=True)
        for name in names
        if (array := getattr(options, name)) is not None
    )
