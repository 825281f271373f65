"""Tiled online softmax: out and lse of one group of sequences (Milakov & Gimelshein 2018; Dao 2023, algorithm 1)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verify.candidates.numpy_tiled.products import Keep, visible_product
from verify.candidates.numpy_tiled.rounding import F32, exp, log, reciprocal, round_to
from verify.candidates.numpy_tiled.scheme import Scheme
from verify.candidates.numpy_tiled.scores import Scorer, per_query_head
from verify.candidates.numpy_tiled.sequences import Sequences


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForwardState:
    """What the forward leaves for the caller and for the backward."""

    accumulator: F32
    """Normalised output before its last rounding, (b, h, seqlen_q, head_dim_v)."""
    out: F32
    """The same rounded to the format of out."""
    lse: F32
    """(b, h, seqlen_q), natural, sink included."""
    maximum: F32
    """Maximum of a row that the sum is relative to, natural, (b, h, seqlen_q)."""
    total: F32
    """Sum of the exponentials, sink included, (b, h, seqlen_q)."""


def forward(part: Sequences, scheme: Scheme, splits: int = 1) -> ForwardState:
    """out and lse with the roundings of the scheme; runs of key tiles, `splits` of them, are joined at the end."""
    scorer = Scorer(part, scheme)
    values = per_query_head(part.v, part.problem.group)
    shape = (*part.q.shape[:2], part.seqlen_q)
    accumulator = np.zeros((*shape, values.shape[-1]), dtype=np.float32)
    maximum, total = np.zeros(shape, dtype=np.float32), np.zeros(shape, dtype=np.float32)
    for rows in scheme.row_tiles(part.seqlen_q):
        tile, *others = (_RowTile(part, scheme, scorer, values, rows) for _ in range(splits))
        tiles = scheme.key_tiles(part.seqlen_k)
        for index, run in enumerate((tile, *others)):
            for keys in tiles[index * len(tiles) // splits : (index + 1) * len(tiles) // splits]:
                run.add(keys)
        for other in others:
            tile.join(other)
        accumulator[..., rows, :] = tile.finish()
        maximum[..., rows], total[..., rows] = tile.maximum, tile.total
    with np.errstate(divide="ignore"):
        lse = np.where(total == 0, np.float32(-np.inf), maximum + log(total))
    out = round_to(accumulator, scheme.out_format)
    return ForwardState(accumulator=accumulator, out=out, lse=lse, maximum=maximum, total=total)


class _RowTile:
    """Running maximum, sum and accumulator of one query tile."""

    def __init__(self, part: Sequences, scheme: Scheme, scorer: Scorer, values: F32, rows: slice) -> None:
        self._part, self._scheme, self._scorer, self._values, self._rows = part, scheme, scorer, values, rows
        shape = (*part.q.shape[:2], rows.stop - rows.start)
        self.maximum = np.full(shape, -np.inf, dtype=np.float32)
        self.total = np.zeros(shape, dtype=np.float32)
        self._accumulator = np.zeros((*shape, values.shape[-1]), dtype=np.float32)
        self._stored: tuple[F32, Keep | None, slice] | None = None

    def add(self, keys: slice) -> None:
        """Takes in one key tile."""
        a, tile = self._scheme.arithmetic, self._scorer.tile(self._rows, keys)
        if tile is None:
            return
        grown = _new_maximum(self.maximum, tile.scores.max(axis=-1), self._scorer, self._scheme)
        # A row without a visible key so far has no maximum; any finite one serves, since its weights are all 0.
        finite = np.where(grown == -np.inf, np.float32(0), grown)
        weights = self._scorer.weights(tile.scores, finite)
        if tile.keep is not None:
            weights = np.where(tile.keep, weights, np.float32(0))
        alpha = self._scorer.rescale(self.maximum, finite)
        self.maximum = grown
        if a.probs_normalised_dtype != "fp32":
            # The single tile of an unfused kernel waits for its sum before it is rounded.
            self.total, self._stored = weights.sum(axis=-1), (weights, tile.keep, keys)
            return
        rounded = round_to(weights, a.probs_dtype)
        self.total = self.total * alpha + (rounded if a.sum_rounded_probs else weights).sum(axis=-1)
        self._accumulator = self._accumulator * alpha[..., None] + self._weighted_values(rounded, tile.keep, keys)
        if a.rounds_out_per_tile:
            # What is stored between tiles is the normalised out, as in FlashAttention-1.
            stored = round_to(self._accumulator * reciprocal(self.total)[..., None], self._scheme.out_format)
            self._accumulator = stored * np.where(self.total == 0, np.float32(1), self.total)[..., None]

    def join(self, other: _RowTile) -> None:
        """Takes in what another run of key tiles gathered (FlashDecoding); at most one of the two is rescaled."""
        joined = np.maximum(self.maximum, other.maximum)
        finite = np.where(joined == -np.inf, np.float32(0), joined)
        own, others = (self._scorer.rescale(run.maximum, finite) for run in (self, other))
        self.maximum = joined
        self.total = self.total * own + other.total * others
        self._accumulator = self._accumulator * own[..., None] + other._accumulator * others[..., None]

    def finish(self) -> F32:
        """Normalised accumulator; `maximum` becomes natural, and both it and `total` take in the sink."""
        self.maximum = self.maximum * np.float32(self._scorer.unit)
        shrink = self._join_sink()
        inverse = shrink * reciprocal(self.total)
        if self._stored is not None:
            weights, keep, keys = self._stored
            stored = round_to(weights * inverse[..., None], self._scheme.arithmetic.probs_normalised_dtype)
            return self._weighted_values(stored, keep, keys) * dropout_factor(self._part)
        normalised: F32 = self._accumulator * (inverse * dropout_factor(self._part))[..., None]
        return normalised

    def _weighted_values(self, weights: F32, keep: Keep | None, keys: slice) -> F32:
        kept = weights
        if self._part.dropout_keep is not None:
            # A dropped key stays visible: its weight is 0, and 0 times its NaN is NaN.
            kept = np.where(self._part.dropout_keep[:, :, self._rows, keys], weights, np.float32(0))
        return visible_product(kept, keep, self._values[..., keys, :], self._scheme)

    def _join_sink(self) -> F32:
        """Adds the sink to the denominator and returns the factor on what was accumulated before."""
        if self._part.sink is None:
            return np.ones_like(self.total)
        logit = np.broadcast_to(self._part.sink[None, :, None], self.maximum.shape)
        joined = np.maximum(self.maximum, logit)
        finite = np.where(joined == -np.inf, np.float32(0), joined)
        shrink = exp(self.maximum - finite, self._scheme.exponential)
        self.maximum = joined
        self.total = self.total * shrink + exp(logit - finite, self._scheme.exponential)
        return shrink


def _new_maximum(running: F32, candidate: F32, scorer: Scorer, scheme: Scheme) -> F32:
    grown = np.maximum(running, candidate)
    if scheme.rescale_threshold == 0:
        return grown
    step = (grown - running) * np.float32(scorer.unit / np.log(2.0))
    return np.where(step <= np.float32(scheme.rescale_threshold), running, grown)


def dropout_factor(part: Sequences) -> np.float32:
    """1/(1-p), the factor on kept weights; 1 without dropout."""
    return np.float32(1.0 / (1.0 - part.problem.dropout_p)) if part.dropout_keep is not None else np.float32(1)
