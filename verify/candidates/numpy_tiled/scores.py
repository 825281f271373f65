"""Scores of a tile and the exponential of their distance to a reference, in the arithmetic of a scheme.

Forward and backward share this file as the two halves of a real kernel share their device functions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from verify.candidates.numpy_tiled.products import Keep, product
from verify.candidates.numpy_tiled.rounding import F32, LOG2_E, exp, exp2, multiply_subtract, round_to, tanh
from verify.candidates.numpy_tiled.scheme import Scheme
from verify.candidates.numpy_tiled.sequences import Sequences
from verify.candidates.numpy_tiled.visibility import bias_tile, keep_tile


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScoreTile:
    """Scores of some rows against some keys."""

    scores: F32
    """(b, h, rows, keys), -inf where hidden; `Scorer.unit` times it is the natural exponent."""
    keep: Keep | None
    """Visible elements, None = all."""
    capped: F32 | None
    """tanh(score/softcap), before bias; None without softcap."""


class Scorer:
    """Computes score tiles of one group of sequences."""

    def __init__(self, part: Sequences, scheme: Scheme) -> None:
        a, p = scheme.arithmetic, part.problem
        self.part, self.scheme = part, scheme
        self.k = per_query_head(part.k, p.group)
        self._q, self._keys = part.q, self.k
        self._factor = np.float32(p.softmax_scale)
        if a.scale_on == "q":
            self._q = round_to(part.q * self._factor, scheme.storage)
        elif a.scale_on == "q_and_k":
            root = np.float32(math.sqrt(p.softmax_scale))
            self._q, self._keys = round_to(part.q * root, scheme.storage), round_to(self.k * root, scheme.storage)
        scaled_before = a.scale_on != "scores"
        # Without anything between scale and exponential, the fused form folds the scale into the constant of exp2.
        plain = p.softcap == 0 and part.bias is None and part.alibi_slopes is None and a.scores_dtype == "fp32"
        folded = a.exp2_fma and plain and not scaled_before
        self._multiply = not (scaled_before or folded)
        self.unit = float(p.softmax_scale) if folded else 1.0
        """Natural exponent per unit of `scores`."""
        self._log2_unit = np.float32(self.unit * LOG2_E)

    def tile(self, rows: slice, keys: slice) -> ScoreTile | None:
        """Scores of the tile, or None when every element is hidden."""
        keep = keep_tile(self.part, rows, keys)
        if keep is not None and not keep.any():
            return None
        scores = product(self.scaled_queries(rows), self._keys[..., keys, :].swapaxes(-1, -2), self.scheme)
        if self._multiply:
            scores = scores * self._factor
        capped = None
        softcap = np.float32(self.part.problem.softcap)
        if softcap > 0:
            capped = tanh(scores / softcap)
            scores = capped * softcap
        bias = bias_tile(self.part, rows, keys)
        if bias is not None:
            scores = scores + bias
        scores = round_to(scores, self.scheme.arithmetic.scores_dtype)
        if keep is not None:
            scores = np.where(keep, scores, np.float32(-np.inf))
        return ScoreTile(scores=scores, keep=keep, capped=capped)

    def weights(self, scores: F32, maximum: F32) -> F32:
        """exp(unit*(scores - maximum)); `maximum` (b, h, rows) in the unit of the scores, finite or NaN."""
        if not self.scheme.arithmetic.exp2_fma:
            return exp(scores - maximum[..., None], self.scheme.exponential)
        shift = (maximum * self._log2_unit)[..., None]
        return exp2(multiply_subtract(scores, self._log2_unit, shift), self.scheme.exponential)

    def rescale(self, before: F32, after: F32) -> F32:
        """Factor on what was accumulated when the running maximum moves from `before` to `after`."""
        if not self.scheme.arithmetic.exp2_fma:
            return exp(before - after, self.scheme.exponential)
        return exp2((before - after) * self._log2_unit, self.scheme.exponential)

    def scaled_queries(self, rows: slice) -> F32:
        """q as it meets the keys: times the scale and rounded where the scheme says so."""
        return self._q[..., rows, :]

    def recomputed(self, tile: ScoreTile, reference: F32) -> F32:
        """exp(unit*scores - reference), 0 where hidden; `reference` (b, h, rows) natural, -inf for a dead row."""
        dead = reference == -np.inf
        finite = np.where(dead, np.float32(0), reference)[..., None]
        if self.scheme.arithmetic.exp2_fma:
            shift = finite * np.float32(LOG2_E)
            probs = exp2(multiply_subtract(tile.scores, self._log2_unit, shift), self.scheme.exponential)
        else:
            probs = exp(tile.scores - finite, self.scheme.exponential)
        visible = ~dead[..., None] if tile.keep is None else tile.keep & ~dead[..., None]
        return np.where(visible, probs, np.float32(0))


def per_query_head(array: F32, group: int) -> F32:
    """(b, hkv, keys, dim) repeated to (b, h, keys, dim): query head h reads head h // group."""
    return array if group == 1 else np.repeat(array, group, axis=1)
