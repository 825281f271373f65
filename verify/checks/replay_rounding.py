"""What the replays of forward and backward share: exact scores, storing in a format, roundings of either direction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verify.dense import DenseSequence
from verify.dtypes import FloatFormat

Float64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """One replayed output and the largest distance of a conforming one, fp64 in its logical shape."""

    values: Float64
    permitted: Float64

    def beyond(self, got: NDArray[Any]) -> int:
        """Number of finite elements that no conforming kernel returns."""
        error = np.abs(got.astype(np.float64) - self.values)
        judged = np.isfinite(error) & np.isfinite(self.permitted)
        return int((error[judged] > self.permitted[judged]).sum())


def exact_scores(part: DenseSequence) -> Float64:
    """fp64 scores (heads, rows, keys), -inf where hidden."""
    shape = (part.nheads, part.seqlen_q, part.seqlen_k)
    scores: Float64 = part.softmax_scale * (part.q @ np.repeat(part.k, part.group, axis=0).swapaxes(1, 2))
    if part.softcap > 0:
        scores = part.softcap * np.tanh(scores / part.softcap)
    bias, keep = part.bias, part.keep
    if bias is not None:
        scores = scores + bias
    return scores if keep is None else np.where(np.broadcast_to(keep, shape), scores, -np.inf)


def stored(values: Float64, form: FloatFormat) -> Float64:
    """fp64 values as a kernel keeps them: in fp32, then in the format."""
    with np.errstate(over="ignore", under="ignore"):
        kept: Float64 = values.astype(np.float32).astype(form.numpy_dtype).astype(np.float64)
    return kept


def flip_sizes(values: Float64, error: Float64, form: FloatFormat) -> Float64:
    """One ulp for every value that lies within its error of a boundary between two roundings, else 0."""
    size = np.abs(values)
    distance = np.abs(values - stored(values, form))
    half = form.half_ulp(np.maximum(size, np.abs(stored(values, form))))
    # Above a power of two the next boundary below is only a quarter ulp away.
    to_boundary = np.minimum(half - distance, distance + 0.5 * half)
    return np.where(to_boundary <= error, 2.0 * form.half_ulp(size + error), 0.0)


def with_output_rounding(values: Float64, before: Float64, form: FloatFormat) -> Float64:
    """What is permitted once the output is rounded, where the replay lies; exact zeros stay exact."""
    reached = np.abs(values) + before
    half_ulp = np.where(before > 0, form.half_ulp(np.where(np.isfinite(reached), reached, 0.0)), 0.0)
    permitted: Float64 = before + half_ulp
    return permitted
