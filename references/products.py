"""The matrix products of one block of the backward, guarded against hidden NaNs only where the operands hold any.

Knows which axes of a block go with which operand; knows no gradient formula.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from references.nonfinite import all_finite, visible_matmul
from references.options import Array
from references.rows import SoftmaxRows, stack_group


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockOperands:
    """fp64 operands of one block: rows of (heads, rows, dim), keys of (kv_heads, keys, dim), dlse (heads, rows)."""

    q: Array
    k: Array
    v: Array
    dout: Array
    dlse: Array | None

    def finite(self) -> bool:
        arrays = (self.q, self.k, self.v, self.dout)
        return all_finite(*arrays) and (self.dlse is None or all_finite(self.dlse))


class BlockProducts:
    """Products of a block's weights with its operands, hidden pairs left out."""

    def __init__(self, soft: SoftmaxRows, operands: BlockOperands, xp: Any) -> None:
        self._operands = operands
        self._kv_heads = operands.k.shape[0]
        self._shape = soft.probs.shape
        self._xp = xp
        self.guarded = soft.keep is not None and not (soft.finite and operands.finite())
        self._keep = stack_group(xp.broadcast_to(soft.keep, self._shape), self._kv_heads) if self.guarded else None

    def dprobs(self) -> Array:
        """dO V^T: (heads, rows, keys)."""
        dout = stack_group(self._operands.dout, self._kv_heads)
        return self._xp.matmul(dout, self._operands.v.swapaxes(1, 2)).reshape(self._shape)

    def onto_rows(self, weights: Array, values: Array) -> Array:
        """Sum over keys: (heads, rows, keys), (kv_heads, keys, dim) -> (heads, rows, dim)."""
        total = self._matmul(stack_group(weights, self._kv_heads), self._keep, values)
        return total.reshape(*self._shape[:2], values.shape[2])

    def onto_keys(self, weights: Array, values: Array) -> Array:
        """Sum over rows and the heads of a group: (heads, rows, keys), (heads, rows, dim) -> (kv_heads, keys, dim)."""
        admitted = None if self._keep is None else self._keep.swapaxes(1, 2)
        stacked = stack_group(weights, self._kv_heads).swapaxes(1, 2)
        return self._matmul(stacked, admitted, stack_group(values, self._kv_heads))

    def _matmul(self, weights: Array, keep: Array | None, values: Array) -> Array:
        if keep is None:
            return self._xp.matmul(weights, values)
        return visible_matmul(weights, keep, values, self._xp)
