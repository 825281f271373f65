"""Sums over the weights of a row that the forward terms share: means, spread and hull of V, and the sink."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verify.tolerance.equal_addends import repeated_weights
from verify.tolerance.equal_rows import over_keys
from verify.tolerance.operands import Operands
from verify.tolerance.repetition import INDEPENDENT
from verify.tolerance.roundings import Real
from verify.tolerance.scores import RowMaxima, ScoreBlock
from verify.tolerance.swallowed import swallowed_weights


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowSums:
    """Row sums that the terms share; V and O in units of V's scale, float32."""

    out: Real
    out_abs: Real
    centre: Real
    """Column mean of V (kv heads, 1, dim); 0 with dropout or a sink, where O is no mean of V."""
    weights: Real
    """Z P."""
    mean_abs: Real
    """Z P |V|."""
    spread: Real
    """sd: P-weighted standard deviation of Z V about O."""
    farthest: Real
    """Largest |Z V - O| of a column."""
    hull: Real
    """Width of the interval that every weighting of Z V stays in."""
    sink_probs: Real
    """(heads, rows); 0 without sink."""
    sink_gap: Real
    key_ratio: Real | None
    repeated: Real
    """(heads, rows): factor on the variance of the row sum, for weights that repeat."""
    swallowed: Real
    """(heads, rows): what the row sum may lose of small weights."""

    @staticmethod
    def of(ops: Operands, block: ScoreBlock, maxima: RowMaxima) -> RowSums:
        """Row sums of a block that spans all keys."""
        out = (ops.out[:, block.rows] / ops.v.unit).astype(np.float32)
        plain = ops.sink is None and block.dropout is None
        values = ops.v.values
        mean = values.mean(axis=1, keepdims=True) if values.shape[1] else np.zeros_like(values[:, :1])
        centre = mean if plain and values.shape[1] else np.zeros((values.shape[0], 1, values.shape[2]), np.float32)
        weights = block.probs if block.dropout is None else block.probs * block.dropout
        second = weights if block.dropout is None else weights * block.dropout
        mean_abs = ops.onto_rows(weights, ops.v.magnitude)
        mean_sq = ops.onto_rows(second, (values - centre) ** 2)
        off_centre = out - np.repeat(centre, ops.group, axis=0)
        spread = np.sqrt(np.maximum(mean_sq - off_centre * off_centre, 0) + np.float32(3e-6) * mean_sq)
        low, high = (np.repeat(edge, ops.group, axis=0) for edge in _column_range(values, plain=plain))
        stretch = np.float32(ops.dropout_factor)
        sink_probs, sink_gap = _sink_column(ops, maxima)
        return RowSums(
            out=out,
            out_abs=np.abs(out),
            centre=centre,
            weights=weights,
            mean_abs=mean_abs,
            spread=spread,
            farthest=np.maximum(np.abs(stretch * high - out), np.abs(stretch * low - out)),
            hull=stretch * (high - low),
            sink_probs=sink_probs,
            sink_gap=sink_gap,
            key_ratio=over_keys(ops, block, ops.key_groups),
            repeated=_repeated(block),
            swallowed=swallowed_weights(block.probs),
        )


def _column_range(values: Real, *, plain: bool) -> tuple[Real, Real]:
    """Smallest and largest value of each column (kv heads, 1, dim), 0 included where O need not lie between them."""
    between = plain and values.shape[1] > 0
    low = values.min(axis=1, keepdims=True, initial=np.inf if between else 0.0)
    high = values.max(axis=1, keepdims=True, initial=-np.inf if between else 0.0)
    return low, high


def _sink_column(ops: Operands, maxima: RowMaxima) -> tuple[Real, Real]:
    if ops.sink is None:
        none = np.zeros(maxima.peak.shape, dtype=np.float32)
        return none, none
    probs = np.where(maxima.alive, np.exp(np.minimum(ops.sink[:, None] - maxima.lse, 0.0)), 0.0)
    return probs.astype(np.float32), np.maximum(maxima.peak - ops.sink[:, None], 0.0).astype(np.float32)


def _repeated(block: ScoreBlock) -> Real:
    if block.probs.shape[-1] <= INDEPENDENT:
        return np.ones((1, 1), dtype=np.float32)
    # A weight of exactly 1 is a multiple of every step of a row sum below 2^24: it rounds nothing.
    below_the_top = np.where(block.gap > 0, block.probs, np.float32(0))
    return repeated_weights(below_the_top)
