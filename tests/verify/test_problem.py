"""An impossible problem is refused where it is made, with the field, its value and the expectation."""

from typing import Any

import pytest
from hypothesis import given

from verify.errors import UsageError
from verify.problem import AttentionProblem, default_scale
from verify.strategies import problems

IMPOSSIBLE: list[tuple[str, dict[str, Any]]] = [
    ("batch", {"batch": 0}),
    ("seqlen_q", {"seqlen_q": -1}),
    ("nheads", {"nheads": 5, "nheads_kv": 2}),
    ("head_dim", {"head_dim": 0}),
    ("dtype", {"dtype": "fp64"}),
    ("softmax_scale", {"softmax_scale": float("nan")}),
    ("softmax_scale", {"softmax_scale": 0.0}),
    ("window", {"window": (-1, 0)}),
    ("pattern", {"pattern": "stripes"}),
    ("keep_fraction", {"keep_fraction": 1.5}),
    ("bias_hidden", {"bias": "additive", "bias_hidden": 1.5}),
    ("bias_hidden", {"bias_hidden": 0.5}),
    ("dropout_p", {"dropout_p": 1.0}),
    ("cu_seqlens_k", {"cu_seqlens_q": (0, 16)}),
    ("cu_seqlens_q", {"cu_seqlens_q": (0, 8), "cu_seqlens_k": (0, 16)}),
    ("cu_seqlens_q", {"batch": 2, "cu_seqlens_q": (0, 16, 8), "cu_seqlens_k": (0, 16, 16)}),
    ("seqlens_k", {"seqlens_k": (17,)}),
    ("page_size", {"page_size": 16}),
    ("layout", {"layout": "packed_qkv", "seqlen_q": 8}),
    ("layout", {"layout": "bhsd", "cu_seqlens_q": (0, 16), "cu_seqlens_k": (0, 16)}),
]


@pytest.mark.parametrize(("field", "fields"), IMPOSSIBLE)
def test_an_impossible_problem_is_refused_by_field(field: str, fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"^{field}=.*expected"):
        AttentionProblem(**fields)


@given(problem=problems())
def test_lengths_stay_within_the_padded_extents(problem: AttentionProblem) -> None:
    lengths = [problem.lengths(sequence) for sequence in range(problem.batch)]
    assert all(rows <= problem.seqlen_q and keys <= problem.seqlen_k for rows, keys in lengths)
    if problem.is_ragged:
        assert (sum(rows for rows, _ in lengths), sum(keys for _, keys in lengths)) == (
            problem.total_q,
            problem.total_k,
        )


def test_default_scale_is_the_inverse_root_of_the_head_dim() -> None:
    assert default_scale(64) == 0.125
