"""Sums over one backward that must agree whatever P is: they need no reference, only the bounds of the outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from verify.checks.case_run import CaseFacts
from verify.checks.variation import Array
from verify.dense import DenseSequence, dense_sequences, take_outputs
from verify.tolerance import Bound

Float64 = NDArray[np.float64]

FP64_SUM = 1e-12
"""Relative error of the fp64 sums here: fewer than 2^13 terms in a pairwise sum of 2^-53 each, generously."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """Two sums for each key/value head, and the largest difference that the bounds of their parts permit."""

    label: str
    sequence: int
    left: Float64
    right: Float64
    permitted: Float64

    @property
    def holds(self) -> bool:
        """Whether every difference is permitted. Sums that overflowed are judged elementwise elsewhere."""
        with np.errstate(invalid="ignore"):
            apart = np.abs(self.left - self.right)
        return bool((~np.isfinite(apart) | ~np.isfinite(self.permitted) | (apart <= self.permitted)).all())


def balances(facts: CaseFacts, outputs: Mapping[str, Array], bounds: Mapping[str, Bound]) -> Iterator[Balance]:
    """Balances of one backward, for every sequence and key/value head: <V, dV> = <O, dO>, <Q, dQ> = <K, dK> and its
    matrix form Q^T dQ = (K^T dK)^T, and, without dropout, sum_j dV_j = sum_i (1 - P_sink,i) dO_i.

    Notes
    -----
    O = Z V with Z = P times the dropout factors, and dV = Z^T dO, so both sides are sum_ij Z_ij <dO_i, V_j>.
    dQ = scale * T K and dK = scale * T^T Q with T the gradient of the scaled scores, so both sides are
    scale * sum_ij T_ij <Q_i, K_j>, with or without softcap, bias, sink and dlse. A side is off by at most
    sum |factor| * bound. A row of P sums to 1 less the sink's share, whence the last balance.
    """
    problem = facts.case.problem
    names = ("out", "dq", "dk", "dv")
    if any(name not in outputs or outputs[name].shape != bounds[name].total.shape for name in names):
        return
    permitted = {name: bounds[name].total for name in names}
    for part in dense_sequences(problem, facts.inputs.arrays):
        if part.dout is None or 0 in (part.seqlen_q, part.seqlen_k):
            continue
        got = take_outputs(problem, {name: outputs[name] for name in names}, part)
        slack = take_outputs(problem, permitted, part)
        for label, keys, rows in (
            ("<V, dV> = <O, dO>", (part.v, "dv"), (part.dout, "out")),
            ("<Q, dQ> = <K, dK>", (part.k, "dk"), (part.q, "dq")),
        ):
            left, left_slack = _inner(part, *keys, got, slack)
            right, right_slack = _inner(part, *rows, got, slack)
            yield Balance(label=label, sequence=part.index, left=left, right=right, permitted=left_slack + right_slack)
        yield _outer(part, got, slack)
        if problem.dropout_p == 0:
            lse = facts.reference(backward=False, with_dlse=False)["lse"]
            yield _mass(part, take_outputs(problem, {"lse": lse}, part)["lse"], got["dv"], slack["dv"])


def _outer(part: DenseSequence, got: Mapping[str, Array], slack: Mapping[str, Array]) -> Balance:
    """Both sides of Q^T dQ = (K^T dK)^T, (kv heads, head_dim, head_dim)."""
    kv_heads, _, dim = part.k.shape
    q = part.q.reshape(kv_heads, -1, dim).swapaxes(1, 2)
    dq, of_dq = (side["dq"].astype(np.float64).reshape(kv_heads, -1, dim) for side in (got, slack))
    dk, of_dk = (side["dk"].astype(np.float64).swapaxes(1, 2) for side in (got, slack))
    with np.errstate(invalid="ignore", over="ignore"):
        permitted = np.abs(q) @ (of_dq + FP64_SUM * np.abs(dq)) + (of_dk + FP64_SUM * np.abs(dk)) @ np.abs(part.k)
        left, right = q @ dq, dk @ part.k
    return Balance(label="Q^T dQ = (K^T dK)^T", sequence=part.index, left=left, right=right, permitted=permitted)


def _mass(part: DenseSequence, lse: Float64, dv: Array, slack: Array) -> Balance:
    """Both sides of sum_j dV_j = sum_i (1 - P_sink,i) dO_i, (kv heads, head_dim_v)."""
    assert part.dout is not None, "asked only for a backward"
    kv_heads, dim = part.k.shape[0], part.dout.shape[-1]
    share, error = _keys_share(part, lse)
    rows, errors = ((x[..., None] * part.dout).reshape(kv_heads, -1, dim) for x in (share, error + FP64_SUM * share))
    values = dv.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        permitted = (slack + FP64_SUM * np.abs(values)).sum(axis=1) + np.abs(errors).sum(axis=1)
        left, right = values.sum(axis=1), rows.sum(axis=1)
    label = "sum of dV = sum of (1 - P_sink) dO"
    return Balance(label=label, sequence=part.index, left=left, right=right, permitted=permitted)


def _keys_share(part: DenseSequence, lse: Float64) -> tuple[Float64, Float64]:
    """1 - P_sink of every row and its error, (heads, rows): where the sink holds all weight, that of lse is left."""
    if part.sink is None:
        return np.where(np.isneginf(lse), 0.0, 1.0), np.zeros(lse.shape)
    with np.errstate(invalid="ignore"):
        exponent = np.where(np.isneginf(lse), 0.0, np.minimum(part.sink[:, None] - lse, 0.0))
        seen = np.exp(exponent)
        error = np.where(seen > 0, FP64_SUM * seen * (1.0 + np.abs(lse) + np.abs(part.sink[:, None])), 0.0)
    return -np.expm1(exponent), error


def _inner(
    part: DenseSequence, factor: Float64, name: str, got: Mapping[str, Array], slack: Mapping[str, Array]
) -> tuple[Float64, Float64]:
    """(inner product, largest error) for each key/value head."""
    kv_heads = part.k.shape[0]
    values = got[name].astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        product = (factor * values).reshape(kv_heads, -1).sum(axis=1)
        error = np.abs(factor) * (slack[name] + FP64_SUM * np.abs(values))
        return product, error.reshape(kv_heads, -1).sum(axis=1)
