"""Refuses operands that do not fit together, in one line that names argument, value and expectation.

Reads shapes only, never values, except the sequence lengths.
"""

from __future__ import annotations

from dataclasses import dataclass

from references.options import Array, AttentionExtras, AttentionOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Extents of one padded attention problem."""

    batch: int
    seqlen_q: int
    seqlen_k: int
    nheads: int
    nheads_kv: int
    head_dim: int
    head_dim_v: int
    lengths_q: tuple[int, ...]
    """Valid rows of q in each batch element."""
    lengths_k: tuple[int, ...]
    """Valid rows of k and v in each batch element."""

    @property
    def group(self) -> int:
        """Query heads that share one key/value head."""
        return self.nheads // self.nheads_kv


def check_shapes(q: Array, k: Array, v: Array, options: AttentionOptions, extras: AttentionExtras) -> Sizes:
    """Return the extents of the problem.

    Raises
    ------
    ValueError
        An operand or an extra does not fit; the message names it, its value and what was expected.
    """
    for name, array in (("q", q), ("k", k), ("v", v)):
        if array.ndim != 4:
            raise ValueError(f"{name}: shape {tuple(array.shape)}, expected (batch, seqlen, nheads, head_dim)")
    batch, seqlen_q, nheads, head_dim = q.shape
    seqlen_k, nheads_kv = k.shape[1:3]
    require_shape("k", k, (batch, seqlen_k, nheads_kv, head_dim))
    require_shape("v", v, (batch, seqlen_k, nheads_kv, v.shape[3]))
    if nheads_kv == 0 or nheads % nheads_kv:
        raise ValueError(f"k: {nheads_kv} heads, expected a divisor of the {nheads} heads of q")
    _check_extras(extras, options, (batch, nheads, seqlen_q, seqlen_k))
    return Sizes(
        batch=batch,
        seqlen_q=seqlen_q,
        seqlen_k=seqlen_k,
        nheads=nheads,
        nheads_kv=nheads_kv,
        head_dim=head_dim,
        head_dim_v=v.shape[3],
        lengths_q=_lengths("seqlens_q", extras.seqlens_q, batch, seqlen_q),
        lengths_k=_lengths("seqlens_k", extras.seqlens_k, batch, seqlen_k),
    )


def require_shape(name: str, array: Array, expected: tuple[int, ...]) -> None:
    """Refuse an array whose shape is not `expected`."""
    if tuple(array.shape) != expected:
        raise ValueError(f"{name}: shape {tuple(array.shape)}, expected {expected}")


def _check_extras(extras: AttentionExtras, options: AttentionOptions, full: tuple[int, int, int, int]) -> None:
    batch, nheads = full[:2]
    _require_broadcastable("mask", extras.mask, full)
    _require_broadcastable("bias", extras.bias, full)
    if extras.mask is not None:
        _require_bool("mask", extras.mask)
    if extras.dropout_keep is not None:
        require_shape("dropout_keep", extras.dropout_keep, full)
        _require_bool("dropout_keep", extras.dropout_keep)
    elif options.dropout_p > 0:
        raise ValueError(f"dropout_keep: None, expected bool {full} because dropout_p is {options.dropout_p}")
    if extras.sink is not None:
        require_shape("sink", extras.sink, (nheads,))
    if extras.alibi_slopes is not None and tuple(extras.alibi_slopes.shape) not in ((nheads,), (batch, nheads)):
        raise ValueError(
            f"alibi_slopes: shape {tuple(extras.alibi_slopes.shape)}, expected {(nheads,)} or {(batch, nheads)}"
        )
    if extras.block_mask is not None:
        _check_block_mask(extras.block_mask, extras.block_size, full)


def _check_block_mask(block_mask: Array, block_size: tuple[int, int] | None, full: tuple[int, int, int, int]) -> None:
    if block_size is None or len(block_size) != 2 or min(block_size) < 1:
        raise ValueError(f"block_size: {block_size!r}, expected (block_q, block_k), both >= 1, beside block_mask")
    batch, nheads, seqlen_q, seqlen_k = full
    blocks = (-(-seqlen_q // block_size[0]), -(-seqlen_k // block_size[1]))
    shape = tuple(block_mask.shape)
    if len(shape) != 4 or shape[0] not in (1, batch) or shape[1] not in (1, nheads) or shape[2:] != blocks:
        raise ValueError(f"block_mask: shape {shape}, expected ({batch} or 1, {nheads} or 1, {blocks[0]}, {blocks[1]})")
    _require_bool("block_mask", block_mask)


def _require_bool(name: str, array: Array) -> None:
    if array.dtype.kind != "b":
        raise ValueError(f"{name}: dtype {array.dtype}, expected bool")


def _require_broadcastable(name: str, array: Array | None, full: tuple[int, ...]) -> None:
    if array is None:
        return
    shape = tuple(array.shape)
    # Lengths 0 and 1 broadcast like any other: an axis fits if it is 1 or equal.
    fits = len(shape) <= len(full) and all(a in (1, b) for a, b in zip(shape[::-1], full[::-1], strict=False))
    if not fits:
        raise ValueError(f"{name}: shape {shape}, expected one that broadcasts to {full}")


def _lengths(name: str, values: Array | None, batch: int, longest: int) -> tuple[int, ...]:
    if values is None:
        return (longest,) * batch
    lengths = tuple(int(n) for n in (values.tolist() if hasattr(values, "tolist") else values))
    if len(lengths) != batch or any(not 0 <= n <= longest for n in lengths):
        raise ValueError(f"{name}: {list(lengths)}, expected {batch} integers in [0, {longest}]")
    return lengths
