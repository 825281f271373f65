"""Queries and keys exchanged: the same scores, summed the other way, give the same sum of all weights.

With no mask, sum_i e^L_i = sum_ij e^S_ij = sum_j e^L'_j, and sum_i e^L_i <U_i, O_i> = sum_j e^L'_j <V_j, O'_j> where
O' attends from the keys to the queries with values U. No reference takes part, only the bounds of both calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from verify.checks.case_run import CaseRun
from verify.checks.variation import Array, logical_values, takes, vary

Float64 = NDArray[np.float64]
FP64_SUM = 1e-12
"""Relative error of the fp64 sums here, generously."""


def exchanged(run: CaseRun) -> CaseRun | None:
    """The case with q and k, dout and v exchanged; None where a mask, a bias, a group or a length forbids it."""
    p = run.case.problem
    masked = p.causal or p.window is not None or p.pattern != "none" or p.bias != "none" or p.sink or p.dropout_p > 0
    uneven = p.is_ragged or p.seqlens_k is not None or p.group > 1
    if masked or uneven or not {"out", "lse"} <= run.contract.capabilities.outputs:
        return None
    layout = "bshd" if p.layout in ("packed_qkv", "broadcast") else p.layout
    problem = replace(p, seqlen_q=p.seqlen_k, seqlen_k=p.seqlen_q, layout=layout)
    if not takes(run, problem):
        return None
    values = logical_values(run)
    values |= {"q": values["k"], "k": values["q"], "v": values["dout"], "dout": values["v"]}
    values["dlse"] = np.zeros((p.batch, p.nheads, p.seqlen_k), dtype=values["dlse"].dtype)
    return vary(run, values, problem)


def duality_faults(run: CaseRun, here: Mapping[str, Array], other: CaseRun, there: Mapping[str, Array]) -> list[str]:
    """What does not agree between the two calls."""
    mine, theirs = _sums(run, here), _sums(other, there)
    top = np.maximum(mine.top, theirs.top)
    faults = []
    for name, left, right in (
        ("sum of all weights", mine.weights(top), theirs.weights(top)),
        ("sum of <U, O> over all weights", mine.products(top), theirs.products(top)),
    ):
        apart, permitted = np.abs(left[0] - right[0]), left[1] + right[1]
        if (np.isfinite(apart) & np.isfinite(permitted) & ~(apart <= permitted)).any():
            faults.append(f"q and k exchanged: another {name}")
    return faults


class _Sums:
    """Sums over the rows of one call for every sequence and head, and how far they may be off."""

    def __init__(self, out: Float64, lse: Float64, factor: Float64, out_bound: Float64, lse_bound: Float64) -> None:
        self._lse, self._lse_bound = lse, lse_bound
        self._inner = np.einsum("bihd,bihd->bhi", factor, out)
        self._inner_bound = np.einsum("bihd,bihd->bhi", np.abs(factor), out_bound + FP64_SUM * np.abs(out))
        self.top = lse.max(axis=-1, keepdims=True)

    def weights(self, top: Float64) -> tuple[Float64, Float64]:
        """sum e^(L - top) and its error."""
        weights = np.exp(self._lse - top)
        return weights.sum(axis=-1), (weights * (np.expm1(self._lse_bound) + FP64_SUM)).sum(axis=-1)

    def products(self, top: Float64) -> tuple[Float64, Float64]:
        """sum e^(L - top) <factor, out> and its error."""
        weights, grown = np.exp(self._lse - top), np.expm1(self._lse_bound) + FP64_SUM
        error = weights * ((1 + grown) * self._inner_bound + grown * np.abs(self._inner))
        return (weights * self._inner).sum(axis=-1), error.sum(axis=-1)


def _sums(run: CaseRun, outputs: Mapping[str, Array]) -> _Sums:
    bounds = run.facts.bounds(run.arithmetic, backward=False, with_dlse=False)
    with np.errstate(over="ignore", invalid="ignore"):
        return _Sums(
            out=outputs["out"].astype(np.float64),
            lse=outputs["lse"].astype(np.float64),
            factor=run.facts.inputs.arrays["dout"].astype(np.float64),
            out_bound=bounds["out"].total,
            lse_bound=bounds["lse"].total,
        )
