"""Roundings of one score: variance, correlated bound and worst case of the exponent's error."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verify.dense import Float64
from verify.tolerance.operands import Operands
from verify.tolerance.roundings import KAPPA_SQ, Real, Roundings, U

HUGE = np.float32(1e15)
"""Scores beyond this are not told apart: their rounding alone exceeds any exponent that matters."""
HUGE_VARIANCE = 1e20
"""The same for a variance in units of U^2: a deviation of 596, and finite times the square of any inflation."""


def small(array: Float64 | Real) -> Real:
    """float32, capped at HUGE so that squares stay finite."""
    return np.minimum(array, HUGE).astype(np.float32)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Slope:
    """Derivative of the softcap; float32 (heads, rows, keys)."""

    true: Real
    largest: Real
    """Largest derivative within the error of the score: d ln(slope)/dt <= 2/c."""


def soft_capped(dots: Float64, error: Real, cap: float) -> tuple[Float64, Slope | None, Real | None]:
    """c tanh(t/c), its slope and |tanh|."""
    if not cap:
        return dots, None, None
    tanh = np.tanh(dots / cap)
    # 1/cosh^2, not 1 - tanh^2: the difference cancels where the cap saturates.
    slope = (1.0 / np.cosh(np.minimum(np.abs(dots) / cap, 300.0)) ** 2).astype(np.float32)
    largest = np.minimum(slope * np.exp(np.minimum(2.0 / cap * error, 80.0)), 1.0).astype(np.float32)
    return cap * tanh, Slope(true=slope, largest=largest), np.abs(tanh).astype(np.float32)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScoreErrors:
    """Magnitudes that the roundings of one block are relative to; float32 (heads, rows, keys)."""

    rounds: Roundings
    half: Real
    """(A + |t|)/2: the largest partial sum of the scaled dot product."""
    magnitude: Real
    """A = s |Q||K|^T."""
    dots: Real
    """|t|."""
    slope: Slope | None
    capped: Real | None
    """|c tanh(t/c)|."""
    bias: Real | None
    scores: Real | None
    """|S| where a bias was added."""
    gap: Real
    peak: Real
    """|row maximum|, (heads, rows, 1)."""
    repeated: Real | None
    """Factor on the variance of the dot product, for channels that repeat; None where it is 1."""
    swallowed: Real | None
    """What the dot product loses of small channels, units of U."""

    def sloped(self, array: Real) -> Real:
        """The array times the largest slope of the softcap."""
        return array if self.slope is None else array * self.slope.largest

    def variance(self) -> Real:
        """Variance of the independent part, units of U^2."""
        arithmetic, low = self.rounds.arithmetic, np.float32((self.rounds.u_scores / U) ** 2)
        dots = self.sloped(self.dots)
        half = self.sloped(self.half)
        total = half * half
        total *= np.float32(self.rounds.dot_steps / 3.0)
        if self.repeated is not None:
            total *= self.repeated
        total += dots * dots * np.float32(arithmetic.scale_roundings + low + (self.capped is not None))
        total += self.gap * self.gap * np.float32(3.0)
        if self.capped is not None:
            total += self.capped * self.capped * (np.float32(1) + low)
        if self.bias is not None and self.scores is not None:
            total += self.bias * self.bias + self.scores * self.scores * (np.float32(1) + low)
        total *= np.float32(KAPPA_SQ)
        return total

    def hard(self, underflow: float) -> Real:
        """Bound on the correlated part, units of U."""
        total: Real = np.full((1, 1, 1), self.rounds.exp_error + underflow / U, dtype=np.float32)
        if self.rounds.shift_error:
            total = total + np.float32(self.rounds.shift_error) * (self.peak + self.gap)
        if self.rounds.truncates:
            total = total + np.float32(self.rounds.dot_steps * self.rounds.step / U) * self.sloped(self.half)
        elif self.swallowed is not None:
            total = total + self.sloped(self.swallowed)
        if self.capped is not None:
            total = total + np.float32(2.0 * self.rounds.arithmetic.tanh_error_ulp) * self.capped
        return total

    def worst(self, underflow: float) -> Real:
        """Bound on all of it."""
        r, arithmetic = self.rounds, self.rounds.arithmetic
        shift, exponentials = r.shift_error, r.rescales + 1
        total = self.sloped(self.magnitude) * np.float32(r.dot_growth + r.u_query)
        steps = arithmetic.scale_roundings + (self.capped is not None)
        total += self.sloped(self.dots) * np.float32(steps * U + r.u_scores)
        total += self.gap * np.float32((3.0 + shift) * U)
        total += self.peak * np.float32(shift * U) + np.float32(
            2.0 * U * arithmetic.exp_ulp * exponentials + r.rescales * U + underflow
        )
        if self.capped is not None:
            total += self.capped * np.float32(U + r.u_scores + 2.0 * U * arithmetic.tanh_error_ulp)
        if self.bias is not None and self.scores is not None:
            total += self.bias * np.float32(U) + self.scores * np.float32(U + r.u_scores)
        return total


def query_variance(ops: Operands, rounds: Roundings, rows: slice, keys: slice, slope: Slope | None) -> Real | None:
    """kappa^2 u^2 s^2 [(n Q^2)(K^2)^T + (Q^2)(n K^2)^T] in units of U^2, n the elements that round alike.

    None when the scale is applied to the scores; the second part only where k is pre-scaled too.
    """
    if ops.query_rounding is None:
        return None
    roundoff = rounds.storage.unit_roundoff
    unit = (ops.q_scaled.unit * ops.k_scaled.unit * ops.sequence.softmax_scale * roundoff / U) ** 2 * KAPPA_SQ
    squares = ops.scores(ops.query_rounding[:, rows], ops.k_scaled.square[:, keys])
    if ops.key_rounding is not None:
        squares = squares + ops.scores(ops.q_scaled.square[:, rows], ops.key_rounding[:, keys])
    variance = np.minimum(squares.astype(np.float64) * unit, HUGE_VARIANCE).astype(np.float32)
    return variance if slope is None else variance * slope.largest * slope.largest


def query_underflow(ops: Operands, rounds: Roundings) -> float:
    """Largest error of a score when the pre-scaled q (and k) underflow in the storage format."""
    if not rounds.u_query:
        return 0.0
    norms = [float(np.abs(x).sum(axis=-1).max(initial=0.0)) for x in (ops.q, ops.k)]
    return rounds.storage.half_subnormal * sum(norms) * max(1.0, ops.sequence.softmax_scale)
