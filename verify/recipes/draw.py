"""Seeded randomness of one case: independent named streams, and the standard normal operands that recipes start from.

Only `random` and `standard_normal` of the generator are used: their streams have not changed since NumPy 1.17.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verify.problem import AttentionProblem

Float64 = NDArray[np.float64]

FACTOR_BITS = 10
"""Significant bits of a factor computed from the data. Coarse, so that the order in which a machine sums a matrix
product cannot change the factor, and with it the input bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operands:
    """q, k, v, dout in fp64, padded: (batch, seqlen, heads, dim) whether the problem is ragged, paged or neither."""

    q: Float64
    k: Float64
    v: Float64
    dout: Float64
    mask: NDArray[np.bool_] | None = None
    """(batch, nheads, seqlen_q, seqlen_k) keep-mask of a captured problem; None = drawn where the problem has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """Source of all random numbers of one case."""

    problem: AttentionProblem
    seed: int

    def stream(self, name: str) -> np.random.Generator:
        """Generator of that name; one stream does not depend on what the others were asked for."""
        return np.random.Generator(np.random.PCG64(np.random.SeedSequence([self.seed, zlib.crc32(name.encode())])))

    def normal(self, name: str, shape: tuple[int, ...]) -> Float64:
        """Standard normal numbers of the named stream."""
        return self.stream(name).standard_normal(shape)

    def uniform(self, name: str, shape: tuple[int, ...]) -> Float64:
        """Numbers in [0, 1) of the named stream."""
        return self.stream(name).random(shape)

    def operands(self) -> Operands:
        """Standard normal q, k, v, dout."""
        p = self.problem
        return Operands(
            q=self.normal("q", (p.batch, p.seqlen_q, p.nheads, p.head_dim)),
            k=share(p, self.normal("k", (p.batch, p.seqlen_k, p.nheads_kv, p.head_dim))),
            v=share(p, self.normal("v", (p.batch, p.seqlen_k, p.nheads_kv, p.head_dim_v))),
            dout=self.normal("dout", (p.batch, p.seqlen_q, p.nheads, p.head_dim_v)),
        )

    def signs(self, name: str) -> Float64:
        """One vector of +-1 for each key/value head, (nheads_kv, head_dim), the same in every sequence."""
        shape = (self.problem.nheads_kv, self.problem.head_dim)
        return np.where(self.uniform(name, shape) < 0.5, -1.0, 1.0)


def share(problem: AttentionProblem, array: Float64) -> Float64:
    """Give every sequence the k or v of the first one where the layout has stride 0 over the batch."""
    if problem.layout == "broadcast":
        array[:] = array[:1]
    return array


def by_query_head(problem: AttentionProblem, per_kv_head: Float64) -> Float64:
    """Repeat the leading key/value head axis for the query heads that read it."""
    return np.repeat(per_kv_head, problem.group, axis=0)


def coarse(factor: float) -> float:
    """The factor with FACTOR_BITS significant bits."""
    mantissa, exponent = np.frexp(factor)
    return float(np.ldexp(np.rint(mantissa * 2**FACTOR_BITS) / 2**FACTOR_BITS, exponent))


def score_rows(problem: AttentionProblem, q: Float64, k: Float64, sequence: int, head: int) -> Float64:
    """softmax_scale * q k^T of one sequence and query head over its valid rows and keys, (rows, keys)."""
    rows, keys = problem.lengths(sequence)
    key_block: Any = k[sequence, :keys, head // problem.group]
    scores: Float64 = problem.softmax_scale * (q[sequence, :rows, head] @ key_block.T)
    return scores


def largest_score(problem: AttentionProblem, q: Float64, k: Float64) -> float:
    """Largest |score| over every valid row and key, before softcap, bias and mask; 0 when there is none."""
    largest = 0.0
    for sequence in range(problem.batch):
        if 0 not in problem.lengths(sequence):
            for head in range(problem.nheads):
                largest = max(largest, float(np.abs(score_rows(problem, q, k, sequence, head)).max()))
    return largest
