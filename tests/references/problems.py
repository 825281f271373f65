"""Small random attention problems for the tests of `references`: a Hypothesis strategy over every option."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from references.options import NO_EXTRAS, AttentionExtras, AttentionOptions


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Problem:
    """Operands of one forward and backward, all fp64."""

    q: Any
    k: Any
    v: Any
    dout: Any
    dlse: Any
    options: AttentionOptions
    extras: AttentionExtras

    @property
    def operands(self) -> tuple[Any, Any, Any]:
        return self.q, self.k, self.v

    @property
    def asked(self) -> dict[str, Any]:
        return {"options": self.options, "extras": self.extras}

    def lengths(self, batch: int) -> tuple[int, int]:
        """Valid rows of q and of k in one batch element."""
        seqlens_q, seqlens_k = self.extras.seqlens_q, self.extras.seqlens_k
        return (
            self.q.shape[1] if seqlens_q is None else int(seqlens_q[batch]),
            self.k.shape[1] if seqlens_k is None else int(seqlens_k[batch]),
        )


def plain_problem(
    seed: int = 0,
    *,
    batch: int = 2,
    seqlen_q: int = 5,
    seqlen_k: int = 7,
    nheads: int = 4,
    nheads_kv: int = 2,
    head_dim: int = 3,
    head_dim_v: int = 2,
    options: AttentionOptions | None = None,
    extras: AttentionExtras = NO_EXTRAS,
) -> Problem:
    """Standard normal operands."""
    draw = np.random.Generator(np.random.PCG64(seed)).standard_normal
    return Problem(
        q=draw((batch, seqlen_q, nheads, head_dim)),
        k=draw((batch, seqlen_k, nheads_kv, head_dim)),
        v=draw((batch, seqlen_k, nheads_kv, head_dim_v)),
        dout=draw((batch, seqlen_q, nheads, head_dim_v)),
        dlse=draw((batch, nheads, seqlen_q)),
        options=options or AttentionOptions(softmax_scale=0.75),
        extras=extras,
    )


@st.composite
def problems(draw: st.DrawFn, *, max_seqlen: int = 9, max_batch: int = 2) -> Problem:
    """Any combination of options; finite operands."""
    group, nheads_kv = draw(st.sampled_from([(1, 1), (1, 2), (2, 1), (2, 2), (3, 1)]))
    seqlen_q, seqlen_k = draw(st.integers(0, max_seqlen)), draw(st.integers(0, max_seqlen))
    options = AttentionOptions(
        softmax_scale=draw(st.sampled_from([0.0, 0.25, 0.7, -1.0, 3.0])),
        causal=draw(st.booleans()),
        alignment=draw(st.sampled_from(["bottom_right", "top_left"])),
        window=draw(st.none() | st.tuples(st.none() | st.integers(0, 4), st.none() | st.integers(0, 4))),
        softcap=draw(st.sampled_from([0.0, 0.0, 1.5, 30.0])),
    )
    problem = plain_problem(
        draw(st.integers(0, 2**32 - 1)),
        batch=draw(st.sampled_from([0, 1, *[max_batch] * 4])),
        seqlen_q=seqlen_q,
        seqlen_k=seqlen_k,
        nheads=group * nheads_kv,
        nheads_kv=nheads_kv,
        head_dim=draw(st.integers(1, 5)),
        head_dim_v=draw(st.integers(1, 5)),
        options=options,
    )
    return _with_extras(draw, problem)


def _with_extras(draw: st.DrawFn, problem: Problem) -> Problem:
    batch, seqlen_q, nheads, _ = problem.q.shape
    seqlen_k = problem.k.shape[1]
    full = (batch, nheads, seqlen_q, seqlen_k)
    rng = np.random.Generator(np.random.PCG64(draw(st.integers(0, 2**32 - 1))))
    extras, options = NO_EXTRAS, problem.options
    if draw(st.booleans()):
        extras = replace(extras, mask=rng.random(draw(broadcastable(full))) < draw(st.sampled_from([0.2, 0.8])))
    if draw(st.booleans()):
        size = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
        blocks = (-(-seqlen_q // size[0]), -(-seqlen_k // size[1]))
        shape = (draw(st.sampled_from([1, batch])), draw(st.sampled_from([1, nheads])), *blocks)
        extras = replace(extras, block_mask=rng.random(shape) < 0.6, block_size=size)
    if draw(st.booleans()):
        bias = rng.standard_normal(draw(broadcastable(full)))
        if draw(st.booleans()):
            bias[rng.random(bias.shape) < 0.2] = -np.inf
        extras = replace(extras, bias=bias)
    if draw(st.booleans()):
        shape = draw(st.sampled_from([(nheads,), (batch, nheads)]))
        extras = replace(extras, alibi_slopes=rng.random(shape))
    if draw(st.booleans()):
        extras = replace(extras, sink=rng.standard_normal(nheads))
    if draw(st.booleans()):
        extras = replace(extras, dropout_keep=rng.random(full) < 0.7)
        options = replace(options, dropout_p=0.3)
    if draw(st.booleans()):
        extras = replace(extras, seqlens_q=rng.integers(0, seqlen_q + 1, batch))
    if draw(st.booleans()):
        extras = replace(extras, seqlens_k=rng.integers(0, seqlen_k + 1, batch))
    return replace(problem, options=options, extras=extras)


@st.composite
def broadcastable(draw: st.DrawFn, full: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that broadcasts to `full`: some axes 1, some leading axes missing."""
    shape = tuple(n if draw(st.booleans()) else 1 for n in full)
    # Mostly all four axes: only those tell the batch elements apart.
    return shape[draw(st.sampled_from([0, 0, 0, 0, 1, 2, 3, 4])) :]


def relative_distance(got: Any, expected: Any) -> float:
    """Largest |got - expected| over the largest finite |expected| (at least 1); infinities must coincide."""
    got, expected = np.asarray(got), np.asarray(expected)
    if got.shape != expected.shape:
        raise AssertionError(f"shape {got.shape}, expected {expected.shape}")
    finite = np.isfinite(expected)
    if not np.array_equal(got[~finite], expected[~finite], equal_nan=True):
        return np.inf
    if not finite.any():
        return 0.0
    gap = float(np.abs(got[finite] - expected[finite]).max())
    return gap / max(1.0, float(np.abs(expected[finite]).max()))
