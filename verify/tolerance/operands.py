"""Operands of the bound for some heads of one sequence: finite, scaled by powers of two into the range of fp32.

A non-finite input reaches the rows that see it, where the maps of special values judge; the bound of all other rows is
that of the finite rest, so non-finite elements count as 0 here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verify.dense import DenseSequence, Float64
from verify.dtypes import FloatFormat
from verify.tolerance.correlation import duplicate_rows, significand_ratio
from verify.tolerance.repetition import group_sizes
from verify.tolerance.roundings import Real, Roundings, U


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scaled:
    """x = unit * values, |values| <= 1, unit a power of two."""

    unit: float
    values: Real
    """float32."""
    magnitude: Real
    """|values|, float32."""
    square: Real
    """values^2, float32."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Operands:
    """Arrays of the query heads of some key/value heads, heads leading."""

    sequence: DenseSequence
    heads: slice
    group: int
    q: Float64
    k: Float64
    q_scaled: Scaled
    k_scaled: Scaled
    v: Scaled
    dout: Scaled | None
    query_rounding: Real | None
    """Square of what each element of q (and of k: `key_rounding`) adds coherently when it is pre-scaled and rounded."""
    key_rounding: Real | None
    query_repeats: Real | None
    """(heads, rows): mean group of equal elements of each q (`repetition`); None where none repeats."""
    key_repeats: Real | None
    """The same of k, (kv heads, keys)."""
    value_repeats: Real | None
    """Of v; None without a backward."""
    dout_repeats: Real | None
    """Of dout, (heads, rows)."""
    dlse: Float64 | None
    """(heads, rows)."""
    out: Float64
    """Reference, (heads, rows, head_dim_v); non-finite elements are 0."""
    lse: Float64
    """Reference, (heads, rows); -inf where nothing is visible; NaN is 0."""
    sink: Float64 | None
    """(heads,)."""
    key_groups: list[Real | None]
    """Per key/value head, group numbers of bitwise equal keys; None where all differ."""
    value_groups: list[Real | None]
    """The same of v; no groups without a backward, as below."""
    query_groups: list[Real | None]
    """Per key/value head, group numbers of equal rows of the stacked queries (group * rows)."""
    dout_groups: list[Real | None]
    """The same of dout."""

    @property
    def dropout_factor(self) -> float:
        """1/(1-p); 1 without dropout."""
        return 1.0 / (1.0 - self.sequence.dropout_p)

    @property
    def dropout_scale_error(self) -> float:
        """Relative error of the constant 1/(1-p) in fp32: p, 1-p and the quotient are rounded; 0 without dropout."""
        p = self.sequence.dropout_p
        return U * (2.0 + p / (1.0 - p)) if p else 0.0

    def stack(self, array: Real) -> Real:
        """(heads, rows, n) as (kv heads, group * rows, n): the rows that meet one key/value head."""
        if self.group == 1:
            return array
        heads, rows, n = array.shape
        stacked: Real = array.reshape(heads // self.group, self.group * rows, n)
        return stacked

    def onto_keys(self, left: Real, right: Real) -> Real:
        """left (heads, rows, keys), right (heads, rows, dim) -> (kv heads, keys, dim), summed over rows and group."""
        product: Real = np.matmul(self.stack(left).swapaxes(1, 2), self.stack(right))
        return product

    def onto_rows(self, left: Real, right: Real) -> Real:
        """left (heads, rows, keys), right (kv heads, keys, dim) -> (heads, rows, dim)."""
        product: Real = np.matmul(self.stack(left), right)
        return product if self.group == 1 else product.reshape(*left.shape[:2], right.shape[-1])

    def scores(self, left: Real, right: Real) -> Real:
        """left (heads, rows, dim), right (kv heads, keys, dim) -> (heads, rows, keys)."""
        product: Real = np.matmul(self.stack(left), right.swapaxes(1, 2))
        return product if self.group == 1 else product.reshape(*left.shape[:2], right.shape[1])


def _coherent(operand: Scaled, form: FloatFormat) -> Real:
    """x^2 times the number of elements of its row with the same significand: they round alike, so they add."""
    return operand.square * significand_ratio(operand.magnitude, form)


def scaled(array: Float64) -> Scaled:
    """Divide by the power of two at or above the largest magnitude."""
    largest = float(np.abs(array).max(initial=0.0))
    unit = float(2.0 ** np.ceil(np.log2(largest))) if largest > 0 else 1.0
    values = (array / unit).astype(np.float32)
    magnitude = np.abs(values)
    return Scaled(unit=unit, values=values, magnitude=magnitude, square=magnitude * magnitude)


def magnitudes(array: Float64) -> Float64:
    """|array| with NaN as 0 and infinities as the largest fp64 number."""
    size = np.abs(array)
    return size if np.isfinite(size).all() else np.abs(np.nan_to_num(array))


def finite(array: Float64) -> Float64:
    """The array with NaN and infinities replaced by 0."""
    good = np.isfinite(array)
    return array if good.all() else np.where(good, array, 0.0)


def operands_of(
    sequence: DenseSequence,
    out: Float64,
    lse: Float64,
    kv_heads: slice,
    rounds: Roundings,
    *,
    backward: bool,
    with_dlse: bool,
) -> Operands:
    """Operands of the query heads that use `kv_heads`.

    Parameters
    ----------
    out, lse : fp64
        Reference of the sequence, (nheads, seqlen_q, head_dim_v) and (nheads, seqlen_q).
    """
    group = sequence.group
    heads = slice(kv_heads.start * group, kv_heads.stop * group)
    q, k = finite(sequence.q[heads]), finite(sequence.k[kv_heads])
    kv_count = k.shape[0]
    q_scaled, k_scaled = scaled(q), scaled(k)
    prescaled = rounds.arithmetic.scale_on
    v = scaled(finite(sequence.v[kv_heads]))
    dout = scaled(finite(sequence.dout[heads])) if backward and sequence.dout is not None else None
    none: list[Real | None] = [None] * kv_count

    def stacked_groups(rows: Real) -> list[Real | None]:
        return duplicate_rows(rows.reshape(kv_count, -1, rows.shape[-1]).astype(np.float64))

    use_dlse = backward and with_dlse and sequence.dlse is not None
    return Operands(
        sequence=sequence,
        heads=heads,
        group=group,
        q=q,
        k=k,
        q_scaled=q_scaled,
        k_scaled=k_scaled,
        v=v,
        dout=dout,
        query_rounding=_coherent(q_scaled, rounds.storage) if prescaled != "scores" else None,
        key_rounding=_coherent(k_scaled, rounds.storage) if prescaled == "q_and_k" else None,
        query_repeats=group_sizes(q_scaled.values),
        key_repeats=group_sizes(k_scaled.values),
        value_repeats=group_sizes(v.values) if backward else None,
        dout_repeats=None if dout is None else group_sizes(dout.values),
        dlse=finite(sequence.dlse[heads]) if use_dlse and sequence.dlse is not None else None,
        out=finite(out[heads]),
        lse=np.where(np.isnan(lse[heads]), 0.0, lse[heads]),
        sink=None if sequence.sink is None else finite(sequence.sink[heads]),
        key_groups=duplicate_rows(k),
        value_groups=duplicate_rows(v.values.astype(np.float64)) if backward else none,
        query_groups=stacked_groups(q) if backward else none,
        dout_groups=none if dout is None else stacked_groups(dout.values),
    )
