"""The emulated kernel rounds where its contract says, and nowhere else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.verify.candidates.asking import arrays_of, ask, problem_of
from verify.candidates import load
from verify.candidates.numpy_tiled import NumpyTiled, build, default_scheme, with_arithmetic
from verify.candidates.numpy_tiled.products import product
from verify.candidates.numpy_tiled.rounding import exp, exp2, round_to, truncate
from verify.contract import Arithmetic
from verify.dtypes import float_format
from verify.errors import UsageError

BF16 = float_format("bf16").numpy_dtype
GRID = np.linspace(-30.0, 0.0, 20011, dtype=np.float32)


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(5).standard_normal(shape).astype(np.float32)


def error_in_ulp(got: np.ndarray, exact: np.ndarray) -> float:
    """Largest relative error in units of 2^-23."""
    return float(np.max(np.abs(got / exact - 1.0)) * 2.0**23)


@pytest.mark.parametrize("function", [(exp, np.exp), (exp2, np.exp2)])
def test_the_rounded_exponential_is_off_by_half_an_ulp(function: tuple) -> None:
    ours, exact = function
    assert error_in_ulp(ours(GRID, "rounded"), exact(GRID.astype(float))) < 0.51


def test_the_cubic_exponential_has_the_error_that_its_contract_declares() -> None:
    error = error_in_ulp(exp2(GRID, "cubic"), np.exp2(GRID.astype(float)))
    assert 500 < error < build("fast_exp").contract.arithmetic["fp32"].exp_ulp


def test_exponentials_of_infinities_and_nan_are_ieee() -> None:
    values = np.array([-np.inf, np.nan, -200.0], dtype=np.float32)
    for kind in ("rounded", "cubic"):
        np.testing.assert_array_equal(exp2(values, kind)[:2], [0.0, np.nan])
        assert exp2(values, kind)[2] == 0.0


def test_truncation_never_grows_a_magnitude() -> None:
    exact = np.random.default_rng(1).standard_normal(1000)
    short = truncate(exact)
    assert (np.abs(short) <= np.abs(exact)).all()
    assert (np.abs(exact - short) <= np.spacing(np.abs(short))).all()


def test_tensor_core_sums_of_positive_terms_stay_below_the_exact_sum() -> None:
    left, right = np.abs(normal(40, 200)), np.abs(normal(200, 40))
    total = product(left, right, build("rtz16").schemes["bf16"])
    exact = left.astype(float) @ right.astype(float)
    assert (total <= exact).all()
    # Thirteen chunks of 16 products, each truncated by less than one ulp.
    assert np.max(1.0 - total / exact) < 13 * 2.0**-23


def test_sequential_sums_add_one_product_after_the_other() -> None:
    left, right = normal(3, 17), normal(17, 2)
    total = product(left, right, build("sequential").schemes["fp32"])
    expected = np.float32(0)
    for term in range(17):
        expected = np.float32(expected + left[1, term] * right[term, 1])
    assert total[1, 1] == expected


@pytest.mark.parametrize(("variant", "rounded"), [("out_fp32", True), ("p_fp32", False)])
def test_probabilities_meet_v_in_the_declared_format(variant: str, rounded: bool) -> None:
    problem = problem_of("bf16", seqlen_k=16, head_dim_v=16, nheads=1)
    arrays = dict(arrays_of(problem))
    arrays["v"] = np.broadcast_to(np.eye(16)[None, :, None], (2, 16, 1, 16)).astype(arrays["v"].dtype)
    out = ask(NumpyTiled({"bf16": with_arithmetic(build(variant).schemes["bf16"], out_dtype="fp32")}), problem, arrays)
    # With V = 1 a row of out is P/l, and P is 1 at the maximum.
    probs = out.outputs["out"] / out.outputs["out"].max(axis=-1, keepdims=True)
    off = np.abs(probs - round_to(probs, "bf16")) / probs
    assert (off.max() < 2.0**-22) == rounded


@pytest.mark.parametrize(("dtype", "format_"), [("fp16", "float16"), ("bf16", "bfloat16"), ("fp32", "float32")])
def test_outputs_come_in_the_storage_dtype_and_lse_in_fp32(dtype: str, format_: str) -> None:
    problem = problem_of(dtype, bias="additive", sink=True)
    outputs = ask(load("numpy_tiled"), problem, arrays_of(problem)).outputs
    names = {name: array.dtype.name for name, array in outputs.items()}
    expected = dict.fromkeys(("out", "dq", "dk", "dv", "dbias"), format_)
    assert names == {**expected, "lse": "float32", "dsink": "float32"}


@pytest.mark.parametrize(
    ("variant", "changed"),
    [
        ("reverse", "out"),
        ("tile16", "out"),
        ("exp", "lse"),
        ("rtz16", "lse"),
        ("l_rounded", "lse"),
        ("lazy", "out"),
        ("fast_exp", "lse"),
        ("q_prescaled", "lse"),
        ("qk_prescaled", "lse"),
        ("delta_dprobs", "dq"),
        ("delta_accumulator", "dq"),
        ("round_per_tile", "dv"),
        ("group_sum_rounded", "dk"),
        ("eager", "out"),
        ("unfused", "dk"),
        ("p_fp32", "out"),
    ],
)
def test_a_variant_leaves_its_trace(variant: str, changed: str) -> None:
    # A scale that is no power of two, several tiles, and logits large enough for the maximum to move.
    problem = problem_of("bf16", seqlen_q=140, seqlen_k=140, nheads=2, nheads_kv=1, head_dim=24, softmax_scale=0.9)
    arrays = arrays_of(problem)
    default = ask(load("numpy_tiled"), problem, arrays).outputs[changed]
    assert (ask(load(f"numpy_tiled:{variant}"), problem, arrays).outputs[changed] != default).any()


def unfused(**changes: Any) -> NumpyTiled:
    """The unfused variant in bf16, its outputs in fp32."""
    scheme = build("unfused").schemes["bf16"]
    return NumpyTiled({"bf16": with_arithmetic(scheme, out_dtype="fp32", grad_dtype="fp32", **changes)})


def test_ds_is_the_difference_of_the_stored_products() -> None:
    # One key behind a sink: out = P where V = 1, dP = dO, delta is the stored P dP, and dbias = dS.
    problem = problem_of(
        "bf16", seqlen_q=60, seqlen_k=1, nheads=1, nheads_kv=1, head_dim_v=1, sink=True, bias="additive"
    )
    arrays = dict(arrays_of(problem))
    arrays["v"] = np.ones_like(arrays["v"])
    outputs = ask(unfused(dscores_dtype="fp32"), problem, arrays).outputs
    probs, dout = (x.astype(np.float32)[..., 0, 0] for x in (outputs["out"], arrays["dout"]))
    first = round_to(probs * dout, "bf16")
    np.testing.assert_array_equal(outputs["dbias"][:, 0, :, 0], first - round_to(probs * first, "bf16"))


@pytest.mark.parametrize(("stored", "same"), [("bf16", True), ("fp32", False)])
def test_dq_is_stored_before_the_scale_multiplies_it(stored: str, same: bool) -> None:
    problem = problem_of("bf16", softmax_scale=0.125)
    dq = ask(unfused(dq_unscaled_dtype=stored), problem, arrays_of(problem)).outputs["dq"]
    assert (round_to(dq, "bf16") == dq).all() == same


@pytest.mark.parametrize("declared", [True, False])
def test_dk_is_a_product_with_the_stored_queries_where_declared(declared: bool) -> None:
    problem = problem_of("bf16", seqlen_q=1, softmax_scale=0.3)
    arrays = dict(arrays_of(problem))
    outputs = ask(unfused(scaled_q_in_dk=declared), problem, arrays).outputs
    unscaled = dict(arrays, q=round_to(arrays["q"].astype(np.float32) * np.float32(0.3), "bf16").astype(BF16))
    expected = ask(unfused(), replace(problem, softmax_scale=1.0), unscaled).outputs["dk"]
    assert (outputs["dk"] == expected).all() == declared


def test_a_lazy_maximum_may_not_claim_to_be_exact() -> None:
    with pytest.raises(UsageError, match="argmax_exact=True: expected False with a lazy"):
        replace(default_scheme("bf16"), rescale_threshold=8.0)


def test_stored_probabilities_need_whole_rows() -> None:
    with pytest.raises(UsageError, match="tile_k=64: expected 0 where the normalised"):
        with_arithmetic(default_scheme("bf16"), probs_normalised_dtype="bf16")


def test_a_contract_is_the_arithmetic_of_its_schemes() -> None:
    candidate = build("rtz16")
    assert candidate.contract.arithmetic["fp16"] == candidate.schemes["fp16"].arithmetic
    assert isinstance(candidate.contract.arithmetic["fp16"], Arithmetic)
    assert candidate.contract.arithmetic["fp16"].accumulate_chunk == 16
