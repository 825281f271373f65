"""The declared arithmetic resolved for one sequence: unit roundoffs, tile counts and the constants of the error model.

Numbers only: which formula uses which of them is said in `scores`, `forward_terms` and `backward_terms`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verify.contract import Arithmetic
from verify.dense import DenseSequence
from verify.dtypes import FloatFormat, float_format
from verify.problem import AttentionProblem

Real = NDArray[Any]
"""Working arrays of the bound: float32 where a relative error of 1e-3 of the bound is enough, else float64."""

U = 2.0**-24
"""Unit roundoff of fp32, in which every kernel accumulates."""
KAPPA_SQ = 0.18
"""E[(relative error of one rounding to nearest / unit roundoff)^2] for log-uniform significands m in [1, 2):
E[1/(3 m^2)] = 1/(8 ln 2) = 0.425^2; 1/3 is the value at m = 1."""
CONFIDENCE = 10.0
"""Standard deviations. A sum of independent errors, each uniform within its half ulp, is sub-Gaussian: at 10 / 1.36
(1.36 = sqrt((1/3) / kappa^2), the worst significand) P(exceed) <= 2 exp(-27) = 4e-12 an element. Largest seen:
docs/tolerances.md."""
SAFETY = 1.002
"""Covers the evaluation of the bound itself in fp32 (relative errors of a few 1e-4 after sums of 16384 terms)."""
TINY_WEIGHT = 1e-18
"""Probabilities below this are left out of the fp32 evaluation (their squares would underflow) and enter as an absolute
term of TINY_WEIGHT * max|V| a key instead."""
FLUSH = 2.0**-126
"""Smallest normal fp32: below it a kernel may flush to zero."""
ALIGNMENT_STEPS = 10.0
"""Truncation inside one tensor-core step, in units of U = 2^-24. A step of K products and the accumulator aligns K+1
terms to the largest exponent and truncates each to F fraction bits: error <= (K+1) 2^-F of the largest term, that is
5 * 2^-23 on V100 (K=4, F=23), 9 * 2^-24 on A100 (8, 24), 17 * 2^-25 on H100 (16, 25), all <= 10 U."""


LINEAR = 1e-3
"""Exponent errors below this act linearly to within SAFETY."""
DETERMINED = 25.0
"""Exponent errors beyond this leave the weight undetermined (e^25 = 7e10); squares of its factor still fit fp32."""


def is_short(name: str) -> bool:
    """Whether a format rounds more than the fp32 of the accumulators."""
    return float_format(name).unit_roundoff > U


def inflation(reach: Real) -> Real:
    """expm1(x)/x, 1 where x is small, constant beyond DETERMINED."""
    if reach.size and float(reach.max()) <= LINEAR:
        return np.ones(reach.shape, dtype=np.float32)
    capped = np.minimum(reach, np.float32(DETERMINED))
    return np.where(reach > LINEAR, np.expm1(capped) / np.maximum(capped, np.float32(1e-30)), np.float32(1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Roundings:
    """Arithmetic of one candidate at one problem, as numbers."""

    arithmetic: Arithmetic
    storage: FloatFormat
    out: FloatFormat
    grad: FloatFormat
    lse: FloatFormat
    u_scores: float
    """Unit roundoff of the format of S; 0 for fp32."""
    u_query: float
    """Relative rounding error of a pre-scaled q (and k); 0 when the scale is applied to the scores."""
    u_probs: float
    u_probs_normalised: float
    u_probs_backward: float
    u_dprobs: float
    u_dscores: float
    u_dscores_products: float
    tiles_q: int
    tiles_k: int
    rescales: int
    """How often the maximum of a row may move: once a key tile after the first, and once when the sink joins."""
    step: float
    """Largest relative error of one accumulation step: U when it rounds to nearest; 2 U when it truncates, and
    ALIGNMENT_STEPS * U more when it sums several products."""
    dot_steps: int
    """Accumulation steps of one score (plus one for inexact products)."""
    dprobs_steps: int
    exp_error: float
    """Bound on the error of the exponentials of one weight, in units of U: its own and that of its rescalings."""
    dot_growth: np.float64
    """gamma of `dot_steps`; as a NumPy scalar, so that a product with it is fp64."""
    dprobs_growth: np.float64

    @property
    def truncates(self) -> bool:
        return self.arithmetic.accumulate == "rtz"

    @property
    def shift_error(self) -> float:
        """Factor of U (|m| + gap): the product m*c is rounded apart from S*c, so a changed maximum does not cancel."""
        return 2.0 if self.arithmetic.exp2_fma and self.rescales else 0.0

    def steps(self, terms: Real | float) -> Real:
        """Accumulation steps of a sum of so many terms."""
        chunked: Real = np.ceil(np.asarray(terms) / self.arithmetic.accumulate_chunk)
        return chunked

    def growth(self, steps: Real | float) -> Real:
        """gamma_n = n u / (1 - n u) (Higham 2002, lemma 3.1) at the unit roundoff of one step."""
        return _growth(steps, self.step)


def resolve(problem: AttentionProblem, sequence: DenseSequence, arithmetic: Arithmetic) -> Roundings:
    """Roundings of `arithmetic` on one sequence of `problem`."""
    lengths, dims = (sequence.seqlen_q, sequence.seqlen_k), (problem.head_dim, problem.head_dim_v)
    return _resolved(problem.dtype, dims, lengths, sequence.sink is not None, arithmetic)


@lru_cache(4096)
def _resolved(
    dtype: str, dims: tuple[int, int], lengths: tuple[int, int], has_sink: bool, arithmetic: Arithmetic
) -> Roundings:
    storage = float_format(dtype)
    tiles_k = _tiles(lengths[1], arithmetic.tile_k)
    rescales = tiles_k - 1 + has_sink
    inexact = 0 if arithmetic.products_exact else 1
    dot_steps, dprobs_steps = (math.ceil(dim / arithmetic.accumulate_chunk) + inexact for dim in dims)
    step = U if arithmetic.accumulate == "rne" else 2.0 * U
    if arithmetic.accumulate == "rtz" and arithmetic.accumulate_chunk > 1:
        step += ALIGNMENT_STEPS * U
    return Roundings(
        arithmetic=arithmetic,
        storage=storage,
        out=float_format(arithmetic.out_dtype or dtype),
        grad=float_format(arithmetic.grad_dtype or dtype),
        lse=float_format(arithmetic.lse_dtype),
        u_scores=_extra_roundoff(arithmetic.scores_dtype),
        u_query={"scores": 0.0, "q": 1.0, "q_and_k": 2.0}[arithmetic.scale_on] * storage.unit_roundoff,
        u_probs=_extra_roundoff(arithmetic.probs_dtype),
        u_probs_normalised=_extra_roundoff(arithmetic.probs_normalised_dtype),
        u_probs_backward=_extra_roundoff(arithmetic.probs_backward_dtype),
        u_dprobs=_extra_roundoff(arithmetic.dprobs_dtype),
        u_dscores=_extra_roundoff(arithmetic.dscores_dtype),
        u_dscores_products=_extra_roundoff(arithmetic.dscores_products_dtype),
        tiles_q=_tiles(lengths[0], arithmetic.tile_q),
        tiles_k=tiles_k,
        rescales=rescales,
        step=step,
        dot_steps=dot_steps,
        dprobs_steps=dprobs_steps,
        exp_error=2.0 * arithmetic.exp_ulp * (1.0 + _joint_rescales(arithmetic, rescales)),
        dot_growth=np.float64(_growth(dot_steps, step)),
        dprobs_growth=np.float64(_growth(dprobs_steps, step)),
    )


def _growth(steps: Real | float, step: float) -> Real:
    product = np.asarray(steps) * step
    grown: Real = product / (1.0 - np.minimum(product, 0.5))
    return grown


def _joint_rescales(arithmetic: Arithmetic, rescales: int) -> float:
    """How many errors of exp the rescalings of a row add up to.

    An exp with exp(0) = 1 errs only when the maximum really moves, and then by roundings of either sign: they add as a
    root. Otherwise exp(0) itself is off, always to the same side, so they add in full.
    """
    return math.sqrt(rescales) if arithmetic.argmax_exact else float(rescales)


def _extra_roundoff(name: str) -> float:
    """Unit roundoff of a format narrower than fp32; fp32 and wider add no rounding beyond those of the arithmetic."""
    return float_format(name).unit_roundoff if is_short(name) else 0.0


def _tiles(length: int, tile: int) -> int:
    return max(1, -(-length // tile)) if tile else 1
