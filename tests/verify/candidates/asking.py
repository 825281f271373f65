"""Builds problems, asks a candidate, and measures how far two sets of outputs are apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from verify.candidate import Array, Call, Candidate, Reply
from verify.case import Case, Recipe
from verify.inputs import make_inputs
from verify.problem import AttentionProblem, default_scale

FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "causal_topleft": {"causal": True, "alignment": "top_left"},
    "window": {"window": (3, 2)},
    "window_open": {"window": (None, 1)},
    "causal_window": {"causal": True, "window": (4, None)},
    "boolean": {"pattern": "boolean", "keep_fraction": 0.5},
    "block_sparse": {"pattern": "block_sparse", "block_size": (4, 8), "keep_fraction": 0.6},
    "bias": {"bias": "additive"},
    "bias_shared": {"bias": "additive", "bias_broadcast": (True, True), "causal": True},
    "alibi": {"bias": "alibi", "causal": True},
    "softcap": {"softcap": 2.0},
    "softcap_bias": {"softcap": 2.0, "bias": "additive"},
    "sink": {"sink": True, "pattern": "boolean", "keep_fraction": 0.3},
    "dropout": {"dropout_p": 0.3},
    "gqa": {"nheads": 4, "nheads_kv": 2},
    "mqa": {"nheads": 3, "nheads_kv": 1, "causal": True},
    "ragged": {"cu_seqlens_q": (0, 5, 5, 23), "cu_seqlens_k": (0, 26, 33, 36), "batch": 3, "causal": True},
    "lengths": {"seqlens_k": (7, 0), "causal": True},
    "paged": {"seqlens_k": (26, 5), "page_size": 4, "bias": "alibi"},
    "dv": {"head_dim_v": 12},
    "no_keys": {"seqlen_k": 0},
    "no_rows": {"seqlen_q": 0},
    "bhsd": {"layout": "bhsd"},
    "sliced": {"layout": "sliced"},
    "broadcast": {"layout": "broadcast"},
    "offset": {"layout": "offset"},
}
"""Small problems, one for each feature; 18 rows and 26 keys where nothing else is said."""


def problem_of(dtype: str = "fp32", **fields: Any) -> AttentionProblem:
    """A small problem with the given fields."""
    defaults: dict[str, Any] = {"batch": 2, "seqlen_q": 18, "seqlen_k": 26, "nheads": 2, "head_dim": 8}
    values = {**defaults, "dtype": dtype, **fields}
    values.setdefault("nheads_kv", values["nheads"])
    values.setdefault("head_dim_v", values["head_dim"])
    values.setdefault("softmax_scale", default_scale(values["head_dim"]))
    return AttentionProblem(**values)


def arrays_of(problem: AttentionProblem, seed: int = 1) -> Mapping[str, Array]:
    """Normal inputs of a problem; NaN in all that no kernel may use."""
    return make_inputs(Case(problem=problem, recipe=Recipe.of("normal"), seed=seed)).arrays


def ask(candidate: Candidate, problem: AttentionProblem, arrays: Mapping[str, Array], **fields: Any) -> Reply:
    """The candidate's reply; with the backward unless it declares none or `fields` says otherwise."""
    options = {"backward": candidate.contract.capabilities.backward, **fields}
    return candidate.run(Call(problem=problem, arrays=arrays, **options))


def distance(got: Mapping[str, Array], expected: Mapping[str, Array]) -> dict[str, float]:
    """Largest |got - expected| / (1 + |expected|) of each output of `got`; infinite where NaN or infinities differ."""
    return {name: _distance(got[name], expected[name]) for name in got}


def _distance(got: Array, expected: Array) -> float:
    assert got.shape == expected.shape
    a, b = got.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(a[finite]).all():
        return float("inf")
    return float(np.max(np.abs(a[finite] - b[finite]) / (1.0 + np.abs(b[finite])), initial=0.0))
