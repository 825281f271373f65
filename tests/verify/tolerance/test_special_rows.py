"""Where the contract leaves no freedom the bound is 0; where it fixes nothing the bound is infinite."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.verify.tolerance.emulated import bounds_of, judge, normal_arrays, problem
from verify.candidates.numpy_tiled import default_scheme


def test_fully_masked_rows_must_be_exact() -> None:
    p = problem(causal=True, seqlen_q=40, seqlen_k=24)
    bounds = bounds_of(p, normal_arrays(p))
    dead = slice(0, 16)
    assert not bounds["out"].total[:, dead].any()
    assert not bounds["dq"].total[:, dead].any()
    assert not bounds["lse"].total[:, :, dead].any()
    assert (bounds["out"].total[:, 16:] > 0).all()


def test_keys_that_no_row_sees_must_have_zero_gradients() -> None:
    p = problem(causal=True, alignment="top_left", seqlen_q=10, seqlen_k=24)
    bounds = bounds_of(p, normal_arrays(p))
    for name in ("dk", "dv"):
        assert not bounds[name].total[:, 10:].any()
        assert (bounds[name].total[:, :10] > 0).all()


def test_elements_outside_every_sequence_must_be_exact() -> None:
    p = problem(batch=2, seqlens_k=(48, 20))
    bounds = bounds_of(p, normal_arrays(p))
    assert not bounds["dk"].total[1, 20:].any()
    assert (bounds["dk"].total[1, :20] > 0).all()


def test_hidden_elements_of_dbias_must_be_zero() -> None:
    p = problem(causal=True, seqlen_q=24, seqlen_k=24, bias="additive")
    total = bounds_of(p, normal_arrays(p))["dbias"].total
    hidden = ~np.tril(np.ones((24, 24), dtype=bool))
    assert not total[..., hidden].any()
    assert (total[..., ~hidden] > 0).all()


def test_sink_alone_gives_zero_out_and_a_finite_lse() -> None:
    p = problem(seqlen_k=0, sink=True)
    bounds = bounds_of(p, normal_arrays(p))
    assert not bounds["out"].total.any()
    assert (bounds["lse"].total > 0).all()
    assert (bounds["lse"].total < 1e-6).all()


def test_nan_behind_the_mask_leaves_the_bound_of_other_rows() -> None:
    p = problem(causal=True, seqlen_q=24, seqlen_k=24, dtype="fp32")
    arrays = normal_arrays(p)
    clean = bounds_of(p, arrays)["out"].total
    arrays["v"][:, 20] = np.nan
    poisoned = bounds_of(p, arrays)["out"].total
    np.testing.assert_allclose(poisoned[:, :20], clean[:, :20], rtol=0.5)


def test_rows_whose_dscores_may_overflow_fp16_are_not_checkable() -> None:
    p = problem()
    arrays = normal_arrays(p)
    arrays["v"] *= np.float16(1000)
    arrays["dout"][0, 3] *= np.float16(1000)
    bounds = bounds_of(p, arrays)
    assert np.isinf(bounds["dq"].total[0, 3]).all()
    assert np.isfinite(bounds["dq"].total[0, 4]).all()
    assert np.isinf(bounds["dk"].total).any()
    assert np.isfinite(bounds["dv"].total).all()


def test_result_near_the_largest_number_may_overflow() -> None:
    p = problem(head_dim_v=2)
    arrays = normal_arrays(p)
    arrays["v"][..., 0], arrays["v"][..., 1] = 65504.0, 1.0
    bound = bounds_of(p, arrays)["out"]
    assert bound.overflow_ok[..., 0].all()
    assert not bound.overflow_ok[..., 1].any()


def test_scores_beyond_fp32_are_not_checkable() -> None:
    p = problem(dtype="fp32")
    arrays = normal_arrays(p)
    arrays["q"][0, 5] *= np.float32(1e20)
    arrays["k"][0] *= np.float32(1e20)
    total = bounds_of(p, arrays)["out"].total
    assert np.isinf(total[0, 5]).all()


def test_scores_in_bf16_at_logit_10000_leave_only_the_hull_of_v() -> None:
    p = problem(dtype="bf16", softmax_scale=1.0)
    arrays = normal_arrays(p)
    arrays["q"] = (arrays["q"].astype(np.float32) * 500).astype(arrays["q"].dtype)
    arithmetic = replace(default_scheme("bf16").arithmetic, scores_dtype="bf16")
    total = bounds_of(p, arrays, arithmetic)["out"].total
    v = arrays["v"].astype(np.float64)
    width = (v.max(axis=1) - v.min(axis=1))[0, 0]
    assert (total[0, :, 0] >= 0.99 * width).mean() > 0.9
    assert np.isfinite(total).all()
    assert judge(p, arrays, scores_dtype="bf16").ratio("out") <= 1.0


def test_empty_sequences_are_bounded_without_an_error() -> None:
    for lengths in ({"seqlen_q": 0}, {"seqlen_k": 0}, {"seqlen_q": 0, "seqlen_k": 0}):
        p = problem(**lengths)
        bounds = bounds_of(p, normal_arrays(p))
        assert all(not bound.total.any() for bound in bounds.values())
