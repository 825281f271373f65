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
    """Balances of one backward: <V, dV> = <O, dO> and <Q, dQ> = <K, dK>, for every sequence and key/value head.

    Notes
    -----
    O = Z V with Z = P times the dropout factors, and dV = Z^T dO, so both sides are sum_ij Z_ij <dO_i, V_j>.
    dQ = scale * T K and dK = scale * T^T Q with T the gradient of the scaled scores, so both sides are
    scale * sum_ij T_ij <Q_i, K_j>, with or without softcap, bias, sink and dlse. A side is off by at most
    sum |factor| * bound.
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
