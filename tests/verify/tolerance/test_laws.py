"""Laws for every problem: honest kernels pass, wrong ones do not, more rounding means more room."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.verify.tolerance.emulated import bounds_of, judge, normal_arrays, problem
from verify.candidate import Call
from verify.candidates.numpy_tiled import VARIANTS, build, default_scheme
from verify.case import Case
from verify.dtypes import float_format
from verify.inputs import make_inputs
from verify.oracle import reference_outputs
from verify.strategies import cases
from verify.tolerance import CONFIDENCE, derive, derive_bounds

FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"window": (5, 3)},
    "gqa": {"nheads": 6, "nheads_kv": 2},
    "dv": {"head_dim_v": 40},
    "bias": {"bias": "additive", "batch": 2, "bias_broadcast": (True, True)},
    "alibi": {"bias": "alibi"},
    "softcap": {"softcap": 2.0},
    "sink": {"sink": True},
    "dropout": {"dropout_p": 0.3},
}


@given(case=cases(max_seqlen=24, max_score_elements=1500), variant=st.sampled_from(sorted(VARIANTS)))
@settings(max_examples=25)
def test_honest_kernel_is_never_rejected(case: Case, variant: str) -> None:
    candidate, arrays = build(variant), make_inputs(case).arrays
    reference = reference_outputs(case.problem, arrays, backward=True).outputs
    arithmetic = candidate.contract.arithmetic[case.problem.dtype]
    bounds = derive_bounds(case.problem, arrays, reference, arithmetic, backward=True)
    outputs = candidate.run(Call(problem=case.problem, arrays=arrays, backward=True)).outputs
    for name, bound in bounds.items():
        got, expected = outputs[name].astype(np.float64), reference[name]
        judged = np.isfinite(bound.total) & np.isfinite(expected) & ~(bound.overflow_ok & np.isinf(got))
        assert (np.abs(got[judged] - expected[judged]) <= bound.total[judged]).all(), name


@pytest.mark.parametrize("variant", sorted(VARIANTS))
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_every_declared_arithmetic_is_honest(variant: str, dtype: str) -> None:
    p = problem(dtype=dtype, nheads=4, nheads_kv=2, sink=True, softcap=5.0, dropout_p=0.25, seqlen_q=70, seqlen_k=70)
    assert judge(p, normal_arrays(p), scheme=build(variant).schemes[dtype]).worst() <= 1.0


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_correctly_rounded_reference_is_accepted(feature: str, dtype: str) -> None:
    p = problem(**FEATURES[feature], dtype=dtype)
    arrays = normal_arrays(p)
    reference = reference_outputs(p, arrays, backward=True).outputs
    bounds = derive_bounds(p, arrays, reference, default_scheme(dtype).arithmetic, backward=True)
    for name, bound in bounds.items():
        storage = "fp32" if name in ("lse", "dsink") else dtype
        rounded = reference[name].astype(float_format(storage).numpy_dtype).astype(np.float64)
        with np.errstate(invalid="ignore"):
            assert ((np.abs(rounded - reference[name]) <= bound.total) | (rounded == reference[name])).all(), name


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_one_percent_scale_error_exceeds_every_gradient_and_out(feature: str, dtype: str) -> None:
    p = problem(**FEATURES[feature], dtype=dtype, seqlen_q=64, seqlen_k=64)
    arrays = normal_arrays(p)
    reference = reference_outputs(p, arrays, backward=True).outputs
    # bf16 itself is good to 2^-8, so one percent shows in lse alone; eight percent shows everywhere.
    error = 0.08 if dtype == "bf16" else 0.01
    wrong = reference_outputs(replace(p, softmax_scale=p.softmax_scale * (1 + error)), arrays, backward=True).outputs
    bounds = derive_bounds(p, arrays, reference, default_scheme(dtype).arithmetic, backward=True)
    for name in ("lse", "out", "dq", "dk", "dv"):
        with np.errstate(invalid="ignore"):
            assert (np.abs(wrong[name] - reference[name]) > bounds[name].total).any(), name


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_dropping_the_last_key_exceeds_out_and_lse(dtype: str) -> None:
    p = problem(dtype=dtype, seqlen_k=200)
    arrays = normal_arrays(p)
    bounds = bounds_of(p, arrays)
    reference = reference_outputs(p, arrays, backward=False).outputs
    short = arrays | {name: arrays[name][:, :-1] for name in ("k", "v")}
    wrong = reference_outputs(replace(p, seqlen_k=199), short, backward=False).outputs
    for name in ("out", "lse"):
        assert (np.abs(wrong[name] - reference[name]) > bounds[name].total).any(), name


@pytest.mark.parametrize(
    "field", ["probs_dtype", "probs_backward_dtype", "dscores_dtype", "scores_dtype", "dprobs_dtype"]
)
def test_narrower_format_never_narrows_a_bound(field: str) -> None:
    p = problem(dtype="fp32", sink=True)
    arrays, arithmetic = normal_arrays(p), default_scheme("fp32").arithmetic
    wide = bounds_of(p, arrays, arithmetic)
    for name in ("fp16", "bf16"):
        narrow = bounds_of(p, arrays, replace(arithmetic, **{field: name}))
        for tensor in wide:
            assert (narrow[tensor].total >= wide[tensor].total * 0.999).all(), (name, tensor)
        wide = narrow


@pytest.mark.parametrize("feature", FEATURES)
def test_blocks_do_not_change_the_bound(feature: str, monkeypatch: pytest.MonkeyPatch) -> None:
    p = problem(**FEATURES[feature])
    arrays = normal_arrays(p)
    whole = bounds_of(p, arrays)
    monkeypatch.setattr(derive, "BLOCK_ELEMENTS", 500)
    for name, bound in bounds_of(p, arrays).items():
        np.testing.assert_allclose(bound.total, whole[name].total, rtol=2e-2, atol=1e-12, err_msg=name)


def test_terms_combine_to_the_total() -> None:
    p = problem()
    for bound in bounds_of(p, normal_arrays(p)).values():
        likely = sum(bound.hard.values()) + CONFIDENCE * np.sqrt(sum(d**2 for d in bound.deviations.values()))
        np.testing.assert_allclose(bound.total, np.minimum(likely, bound.worst_case) + bound.output_half_ulp)
        assert set(bound.terms) >= set(bound.hard)


def test_gradient_of_lse_reaches_dq_dk_and_dsink() -> None:
    p = problem(sink=True)
    judged = judge(p, normal_arrays(p), with_dlse=True)
    assert judged.worst() <= 1.0
    without = bounds_of(p, normal_arrays(p))
    for name in ("dq", "dk", "dsink"):
        assert (judged.bounds[name].total != without[name].total).any()
