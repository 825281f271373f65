"""Gradients of one group of sequences, tile by tile, from probabilities recomputed with lse (Dao 2023, algorithm 2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verify.candidates.numpy_tiled.forward import ForwardState, dropout_factor
from verify.candidates.numpy_tiled.products import product, visible_product
from verify.candidates.numpy_tiled.rounding import F32, exp, reciprocal, round_to
from verify.candidates.numpy_tiled.scheme import Scheme
from verify.candidates.numpy_tiled.scores import Scorer, ScoreTile, per_query_head
from verify.candidates.numpy_tiled.sequences import Sequences


@dataclass(slots=True, kw_only=True, eq=False)
class Gradients:
    """fp32 gradients before their last rounding, filled tile by tile."""

    q: F32
    """(b, h, seqlen_q, head_dim)"""
    k: F32
    """(b, hkv, seqlen_k, head_dim)"""
    v: F32
    """(b, hkv, seqlen_k, head_dim_v)"""
    bias: F32 | None
    """(b|1, h|1, seqlen_q, seqlen_k)"""
    sink: F32 | None
    """(h,)"""


def backward(part: Sequences, state: ForwardState, scheme: Scheme) -> Gradients:
    """dq, dk, dv and, where the problem has them, dbias and dsink."""
    run = _Backward(part, state, scheme)
    for keys in scheme.key_tiles(part.seqlen_k):
        for rows in scheme.row_tiles(part.seqlen_q):
            run.add_tile(rows, keys)
    run.finish_queries()
    run.grads.k = _sum_group(run.grads.k, part.problem.group, scheme)
    run.grads.v = _sum_group(run.grads.v, part.problem.group, scheme)
    return run.grads


class _Backward:
    def __init__(self, part: Sequences, state: ForwardState, scheme: Scheme) -> None:
        assert part.dout is not None
        self.part, self.state, self.scheme = part, state, scheme
        self.dout = part.dout
        self.scorer = Scorer(part, scheme)
        self.values = per_query_head(part.v, part.problem.group)
        self.scale = np.float32(part.problem.softmax_scale)
        self.grads = Gradients(
            q=np.zeros_like(part.q),
            k=np.zeros_like(self.scorer.k),
            v=np.zeros_like(self.values),
            bias=None if part.bias is None else np.zeros_like(part.bias),
            sink=None,
        )
        self.delta = self._row_delta()
        if part.sink is not None:
            self.grads.sink = self._sink_gradient(part.sink)

    def add_tile(self, rows: slice, keys: slice) -> None:
        """Adds what one tile contributes to every gradient."""
        tile = self.scorer.tile(rows, keys)
        if tile is None:
            return
        a, dout = self.scheme.arithmetic, self.dout[..., rows, :]
        probs = self._probs(tile, rows)
        # Rows hidden from a key must not reach its gradients either, hence the transposed keep.
        keep = tile.keep
        turned = None if keep is None else np.broadcast_to(keep, probs.shape).swapaxes(-1, -2)
        kept = self._kept(round_to(probs, a.probs_backward_dtype), rows, keys)
        dv = visible_product(kept.swapaxes(-1, -2), turned, dout, self.scheme) * dropout_factor(self.part)
        self._accumulate(self.grads.v, keys, dv, a.rounds_dkv_per_tile)

        dscores = self._dscores(round_to(probs, a.probs_dscores_dtype), rows, keys)
        if keep is not None:
            dscores = np.where(keep, dscores, np.float32(0))
        self._add_bias(dscores, rows, keys)
        if tile.capped is not None:
            dscores = dscores * (np.float32(1) - tile.capped * tile.capped)
            if keep is not None:
                dscores = np.where(keep, dscores, np.float32(0))
        one = np.float32(1)
        early, late = (self.scale, one) if a.scale_on_dscores else (one, self.scale)
        dscores = round_to(dscores * early, a.dscores_dtype)
        dq = visible_product(dscores, keep, self.scorer.k[..., keys, :], self.scheme)
        queries = self.scorer.scaled_queries(rows) if a.scaled_q_in_dk else self.part.q[..., rows, :]
        dk = visible_product(dscores.swapaxes(-1, -2), turned, queries, self.scheme)
        dq, dk = dq * (late if a.dq_unscaled_dtype == "fp32" else one), dk * (one if a.scaled_q_in_dk else late)
        self._accumulate(self.grads.q, rows, dq, a.rounds_dq_per_tile)
        self._accumulate(self.grads.k, keys, dk, a.rounds_dkv_per_tile)

    def finish_queries(self) -> None:
        """Multiplies dq by the scale where it was stored without."""
        stored = self.scheme.arithmetic.dq_unscaled_dtype
        if stored != "fp32":
            self.grads.q = round_to(self.grads.q, stored) * self.scale

    def _dscores(self, probs: F32, rows: slice, keys: slice) -> F32:
        """dS before the slope of the softcap: P (dP - delta), or the difference of the stored P dP and P delta."""
        dprobs, delta = self._dprobs(rows, keys), self.delta[..., rows, None]
        stored = self.scheme.arithmetic.dscores_products_dtype
        if stored == "fp32":
            return probs * (dprobs - delta)
        return round_to(probs * dprobs, stored) - round_to(probs * delta, stored)

    def _probs(self, tile: ScoreTile, rows: slice) -> F32:
        a, state = self.scheme.arithmetic, self.state
        if a.lse_stored:
            return self.scorer.recomputed(tile, state.lse[..., rows])
        total = state.total[..., rows]
        reference = np.where(total == 0, np.float32(-np.inf), state.maximum[..., rows])
        weights = self.scorer.recomputed(tile, reference)
        probs = round_to(weights * reciprocal(total)[..., None], a.probs_normalised_dtype)
        # A NaN in the row's sum must not turn the zeros of hidden keys into NaN.
        return probs if tile.keep is None else np.where(tile.keep, probs, np.float32(0))

    def _dprobs(self, rows: slice, keys: slice) -> F32:
        dprobs = product(self.dout[..., rows, :], self.values[..., keys, :].swapaxes(-1, -2), self.scheme)
        dprobs = round_to(dprobs, self.scheme.arithmetic.dprobs_dtype)
        return self._kept(dprobs, rows, keys) * dropout_factor(self.part)

    def _kept(self, array: F32, rows: slice, keys: slice) -> F32:
        if self.part.dropout_keep is None:
            return array
        return np.where(self.part.dropout_keep[:, :, rows, keys], array, np.float32(0))

    def _row_delta(self) -> F32:
        """rowsum(dO*O) less dlse: what is common to a row of dS/P, fp32 (b, h, seqlen_q)."""
        source = self.scheme.arithmetic.delta_from
        if source == "dprobs":
            delta = self._delta_from_dprobs()
        else:
            out = self.state.out if source == "out" else self.state.accumulator
            delta = (self.dout * out).sum(axis=-1)
        return delta if self.part.dlse is None else delta - self.part.dlse

    def _delta_from_dprobs(self) -> F32:
        stored = self.scheme.arithmetic.dscores_products_dtype
        delta = np.zeros(self.state.lse.shape, dtype=np.float32)
        for rows in self.scheme.row_tiles(self.part.seqlen_q):
            for keys in self.scheme.key_tiles(self.part.seqlen_k):
                tile = self.scorer.tile(rows, keys)
                if tile is None:
                    continue
                terms = round_to(self._probs(tile, rows) * self._dprobs(rows, keys), stored)
                if tile.keep is not None:
                    terms = np.where(tile.keep, terms, np.float32(0))
                delta[..., rows] += terms.sum(axis=-1)
        return round_to(delta, stored)

    def _sink_gradient(self, sink: F32) -> F32:
        # The sink's value is 0, so its dP is 0 and dsink = sum over rows of P_sink * (0 - delta).
        lse = self.state.lse
        dead = lse == -np.inf
        distance = sink[None, :, None] - np.where(dead, np.float32(0), lse)
        probs = np.where(dead, np.float32(0), exp(distance, self.scheme.exponential))
        total: F32 = (-probs * self.delta).sum(axis=(0, 2))
        return total

    def _add_bias(self, dscores: F32, rows: slice, keys: slice) -> None:
        if self.grads.bias is None:
            return
        shared = tuple(axis for axis in (0, 1) if self.grads.bias.shape[axis] < dscores.shape[axis])
        self.grads.bias[:, :, rows, keys] += dscores.sum(axis=shared, keepdims=True) if shared else dscores

    def _accumulate(self, total: F32, part: slice, addend: F32, rounds: bool) -> None:
        summed = total[..., part, :] + addend
        total[..., part, :] = round_to(summed, self.scheme.grad_format) if rounds else summed


def _sum_group(gradient: F32, group: int, scheme: Scheme) -> F32:
    """(b, h, keys, dim) summed over the query heads of a group, in the declared format."""
    name = scheme.arithmetic.group_sum_dtype
    batch, heads, keys, dim = gradient.shape
    grouped = round_to(gradient, name).reshape(batch, heads // group, group, keys, dim)
    total = grouped[:, :, 0]
    for head in range(1, group):
        total = round_to(total + grouped[:, :, head], name)
    return total
