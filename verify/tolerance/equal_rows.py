"""Rows of an operand that are equal have equal errors: weights of their groups, for sums over keys and over rows.

Equal k and equal q err alike in the exponent, equal v and equal dout in dP, equal rows of P in delta and lse.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verify.dense import Float64
from verify.tolerance.correlation import duplicate_rows, group_ratio
from verify.tolerance.operands import Operands
from verify.tolerance.roundings import Real
from verify.tolerance.scores import RowMaxima, ScoreBlock

Groups = list[Real | None]
"""Per key/value head, group numbers of equal rows; None where all differ."""


def over_keys(ops: Operands, block: ScoreBlock, groups: Groups) -> Real | None:
    """Weight of each key's group over its own, (heads, rows, keys); None where no keys are equal."""
    if all(numbers is None for numbers in groups):
        return None
    ratio = np.ones(block.probs.shape, dtype=np.float32)
    for kv_head, numbers in enumerate(groups):
        if numbers is not None:
            heads = slice(kv_head * ops.group, (kv_head + 1) * ops.group)
            ratio[heads] = group_ratio(block.probs[heads], numbers[block.keys])
    return ratio


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowRatios:
    """Down the columns of a block, weight of a row's group over its own, (heads, rows, keys); None without equals."""

    queries: Real | None
    """Equal q."""
    weights: Real | None
    """Equal q or equal P: the larger."""
    douts: Real | None
    """Equal dout."""

    @staticmethod
    def of(ops: Operands, block: ScoreBlock, alike: Groups) -> RowRatios:
        """Ratios of a block that spans all rows; `alike` from `equal_weights`."""
        queries, same = (_over_rows(ops, block, groups) for groups in (ops.query_groups, alike))
        return RowRatios(queries=queries, weights=larger(queries, same), douts=_over_rows(ops, block, ops.dout_groups))


def _over_rows(ops: Operands, block: ScoreBlock, groups: Groups) -> Real | None:
    if all(numbers is None for numbers in groups):
        return None
    stacked = ops.stack(block.probs)
    ratio = np.ones(stacked.shape, dtype=np.float32)
    for kv_head, numbers in enumerate(groups):
        if numbers is not None:
            by_key = np.ascontiguousarray(stacked[kv_head].T)[None]
            ratio[kv_head] = group_ratio(by_key, numbers)[0].T
    return ratio.reshape(block.probs.shape)


def larger(first: Real | None, second: Real | None) -> Real | None:
    """The larger of two ratios, either of which may be absent."""
    if first is None or second is None:
        return second if first is None else first
    return np.maximum(first, second)


def raised(variance: Real, ratio: Real | None) -> Real:
    """The variance times the ratio, where there is one."""
    return variance if ratio is None else variance * ratio


def equal_weights(ops: Operands, maxima: RowMaxima) -> Groups:
    """Groups of rows whose weights of keys are equal up to a factor: out and ln l without the sink are, to fp32."""
    seen = np.zeros(maxima.lse.shape) if ops.sink is None else np.exp(np.minimum(ops.sink[:, None] - maxima.lse, 0.0))
    share = np.maximum(1.0 - seen, 1e-12)
    log_sum = np.where(maxima.alive, maxima.lse + np.log(share) - maxima.key_peak, 0.0)
    signature = np.concatenate([ops.out / share[..., None], log_sum[..., None]], axis=-1).astype(np.float32)
    return duplicate_rows(ops.stack(signature).astype(np.float64))


def over_rows_of_a_head(ops: Operands, *several: Groups) -> Float64:
    """How many rows of their head are equal to each row, (heads, rows); the largest of several groupings."""
    ratio: Float64 = np.ones(ops.lse.shape)
    for groups in several:
        for head in range(ratio.shape[0]):
            numbers = groups[head // ops.group]
            if numbers is not None:
                mine = numbers.reshape(ops.group, -1)[head % ops.group]
                ratio[head] = np.maximum(ratio[head], np.bincount(mine)[mine])
    return ratio
