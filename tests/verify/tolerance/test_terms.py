"""Each rounding term is needed: an honest kernel with that rounding breaks the bound of a contract that omits it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.verify.tolerance.emulated import bounds_of, judge, normal_arrays, problem
from verify.candidates.numpy_tiled import default_scheme, with_arithmetic

DECLARATIONS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "probs": ({}, {"probs_dtype": "fp32"}, "out"),
    "probs_backward": ({}, {"probs_backward_dtype": "fp32"}, "dv"),
    "dscores": ({}, {"dscores_dtype": "fp32"}, "dk"),
    "scores": ({"scores_dtype": "fp16"}, {"scores_dtype": "fp32"}, "lse"),
    "dprobs": ({"dprobs_dtype": "fp16", "dscores_dtype": "fp32"}, {"dprobs_dtype": "fp32"}, "dk"),
    "query": ({"scale_on": "q"}, {"scale_on": "scores"}, "lse"),
    "out": ({"probs_dtype": "fp32"}, {"out_dtype": "fp32"}, "out"),
    "gradient": ({"probs_backward_dtype": "fp32"}, {"grad_dtype": "fp32"}, "dv"),
    "row_sum": ({"sum_rounded_probs": True}, {"sum_rounded_probs": False}, "lse"),
    "out_per_tile": ({"rounds_out_per_tile": True, "tile_k": 4}, {"rounds_out_per_tile": False}, "out"),
    "dq_per_tile": ({"rounds_dq_per_tile": True, "tile_k": 4}, {"rounds_dq_per_tile": False}, "dq"),
    "dkv_per_tile": ({"rounds_dkv_per_tile": True, "tile_q": 3}, {"rounds_dkv_per_tile": False}, "dv"),
}
"""name -> what the kernel does, what it leaves out of its contract, the output that shows it."""


@pytest.mark.parametrize("name", DECLARATIONS)
def test_rounding_left_out_of_the_contract_is_rejected(name: str) -> None:
    does, omits, tensor = DECLARATIONS[name]
    p = problem(seqlen_q=96, seqlen_k=96)
    scheme = with_arithmetic(default_scheme("fp16"), **does)
    honest = judge(p, normal_arrays(p), scheme=scheme)
    silent = judge(p, normal_arrays(p), scheme=scheme, declared=replace(scheme.arithmetic, **omits))
    assert honest.worst() <= 1.0
    assert silent.ratio(tensor) > 1.0


def test_fast_exponential_shows_in_lse_alone() -> None:
    p = problem()
    scheme = replace(with_arithmetic(default_scheme("fp16"), exp_ulp=640.0, argmax_exact=False), exponential="cubic")
    silent = judge(p, normal_arrays(p), scheme=scheme, declared=replace(scheme.arithmetic, exp_ulp=2.0))
    assert silent.ratio("lse") > 1.0
    assert judge(p, normal_arrays(p), scheme=scheme).worst() <= 1.0


def test_underflow_of_small_weights_in_fp16_is_part_of_the_bound() -> None:
    # One key takes nearly all the weight; the others, at e^-18, are below the smallest fp16 and vanish.
    p = problem(seqlen_q=1, seqlen_k=32, head_dim=16, softmax_scale=1.0, nheads=1)
    arrays = normal_arrays(p)
    arrays["q"][:], arrays["k"][:], arrays["v"][:] = 0.0, 0.0, 1024.0
    arrays["q"][..., 0], arrays["k"][:, 0, :, 0], arrays["v"][:, 0] = 6.0, 3.0, 0.0
    judged = judge(p, arrays)
    relative = 2.0**-11 * np.abs(judged.reference["out"])
    assert (judged.outputs["out"] == 0).all()
    assert (judged.error("out") > 100 * relative).all()
    assert judged.ratio("out") <= 1.0


def test_rounding_of_out_on_a_coarse_grid_is_not_uniform() -> None:
    # V = 100 + noise in bf16 puts out between two grid points for whole rows; dP - delta amplifies that.
    p = problem(dtype="bf16", seqlen_q=64, seqlen_k=64)
    for seed in range(8):
        arrays = normal_arrays(p, seed)
        arrays["v"] = (arrays["v"].astype(np.float32) + 100).astype(arrays["v"].dtype)
        assert judge(p, arrays).worst() <= 1.0


def test_equal_keys_have_equal_errors_that_add() -> None:
    p = problem(seqlen_k=512, seqlen_q=8, dtype="fp32")
    arrays = normal_arrays(p)
    distinct = bounds_of(p, arrays)["out"].deviations["exponent"]
    arrays["k"][:] = arrays["k"][:, :1]
    repeated = bounds_of(p, arrays)["out"].deviations["exponent"]
    assert np.median(repeated) > 2 * np.median(distinct)


def test_equal_weights_have_equal_rounding_errors_that_add() -> None:
    p = problem(seqlen_k=500, seqlen_q=4)
    arrays = normal_arrays(p)
    arithmetic = replace(default_scheme("fp16").arithmetic, argmax_exact=False)
    spread = bounds_of(p, arrays, arithmetic)["out"].deviations["probs rounding"]
    arrays["q"][:] = 0.0
    equal = bounds_of(p, arrays, arithmetic)["out"].deviations["probs rounding"]
    assert np.median(equal) > 5 * np.median(spread)
    assert judge(p, arrays, argmax_exact=False).worst() <= 1.0


@pytest.mark.parametrize("rows", [64, 256])
def test_common_mean_of_v_does_not_enter_the_exponent_term(rows: int) -> None:
    p = problem(dtype="fp32", seqlen_q=rows)
    arrays = normal_arrays(p)
    plain = bounds_of(p, arrays)["out"].deviations["exponent"]
    arrays["v"] += np.float32(1000.0)
    shifted = bounds_of(p, arrays)["out"].deviations["exponent"]
    assert np.median(shifted) < 2 * np.median(plain)


def test_sink_joining_counts_as_one_more_exponential() -> None:
    p = problem(dtype="fp16", sink=True, seqlen_k=40)
    scheme = replace(
        with_arithmetic(default_scheme("fp16"), exp_ulp=640.0, argmax_exact=False, tile_k=0), exponential="cubic"
    )
    arrays = normal_arrays(p)
    arrays["q"][:] = 0.0
    arrays["sink"][:] = 0.3
    assert judge(p, arrays, scheme=scheme).worst() <= 1.0


def test_saturated_softcap_leaves_the_errors_of_dbias() -> None:
    # dbias is dS before the factor 1 - tanh^2, so a factor near 0 must not narrow it.
    p = problem(dtype="fp32", bias="additive", softcap=1.0)
    arrays = normal_arrays(p)
    arrays["q"] *= np.float32(40)
    judged = judge(p, arrays)
    bound, expected = judged.bounds["dbias"].total, judged.reference["dbias"]
    assert (bound > 2.0**-24 * np.abs(expected)).all()
    assert judged.worst() <= 1.0
