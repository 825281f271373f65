"""The predicted standard deviation is that of an emulated kernel's real error, and the bound follows from it."""

from __future__ import annotations

import numpy as np
import pytest

from tests.verify.tolerance.emulated import judge, normal_arrays, problem
from verify.tolerance import CONFIDENCE

TENSORS = ("out", "dq", "dk", "dv")


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("tensor", TENSORS)
def test_rms_error_of_normal_data_is_the_predicted_one(dtype: str, tensor: str) -> None:
    p = problem(dtype=dtype, seqlen_q=128, seqlen_k=128, head_dim=32)
    ratios = []
    for seed in range(4):
        judged = judge(p, normal_arrays(p, seed))
        bound = judged.bounds[tensor]
        predicted = np.sqrt(np.mean(bound.sigma**2 + bound.output_half_ulp**2 / 3))
        ratios.append(np.sqrt(np.mean(judged.error(tensor) ** 2)) / predicted)
    assert 0.85 < np.mean(ratios) < 1.1


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("tensor", TENSORS)
def test_bound_of_normal_data_is_near_its_deviations(dtype: str, tensor: str) -> None:
    p = problem(dtype=dtype, seqlen_q=128, seqlen_k=128, head_dim=32)
    bound = judge(p, normal_arrays(p)).bounds[tensor]
    assert (bound.total <= 1.5 * CONFIDENCE * bound.sigma + bound.output_half_ulp).mean() > 0.95


def test_errors_of_fp32_stay_far_below_fixed_limits() -> None:
    p = problem(dtype="fp32", seqlen_q=128, seqlen_k=128, head_dim=64)
    judged = judge(p, normal_arrays(p))
    for tensor in TENSORS:
        scale = np.sqrt(np.mean(judged.reference[tensor] ** 2))
        assert np.median(judged.bounds[tensor].total) < 1e-3 * scale


def test_lse_in_fp32_is_bounded_within_hundreds_of_roundings() -> None:
    p = problem(dtype="bf16", seqlen_q=64, seqlen_k=200, head_dim=64)
    assert judge(p, normal_arrays(p)).bounds["lse"].total.max() < 2e-5
