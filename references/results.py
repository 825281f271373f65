"""What forward and backward return, shared by every implementation in this room. Data only."""

from __future__ import annotations

from dataclasses import dataclass

from references.options import Array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttentionResult:
    """What forward attention returns."""

    out: Array
    """fp64 (batch, seqlen_q, nheads, head_dim_v)."""
    lse: Array
    """fp64 (batch, nheads, seqlen_q), natural log of the softmax denominator, sink included."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gradients:
    """Gradients of <dout, out> + <dlse, lse>."""

    dq: Array
    """fp64 (batch, seqlen_q, nheads, head_dim)."""
    dk: Array
    """fp64 (batch, seqlen_k, nheads_kv, head_dim), summed over the query heads of each group."""
    dv: Array
    """fp64 (batch, seqlen_k, nheads_kv, head_dim_v), summed likewise."""
    dbias: Array | None = None
    """fp64 in the shape of extras.bias, summed over its broadcast axes; None without bias."""
    dsink: Array | None = None
    """fp64 (nheads,); None without sink."""
