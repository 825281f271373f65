"""An unfused backward: P dP, delta, P delta and dq before the scale are stored, and dk meets the rounded q."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.verify.tolerance.emulated import Judged, bounds_of, judge, normal_arrays, patterned_arrays, problem
from verify.candidates.numpy_tiled import default_scheme, with_arithmetic
from verify.candidates.numpy_tiled.variants import VARIANTS
from verify.case import Case
from verify.inputs import make_inputs
from verify.tolerance import delta_errors, derive, key_terms

SMALLEST = {
    "P dP": (
        "attn1:b=1,sq=1,sk=3,h=1,d=1,dtype=fp16,recipe=pinned:dout=1:k=1.5~0~-1.5:q=%31.5537109"
        ":v=6.020069e-06~-2.4020672e-05~5.00679e-06,seed=0"
    ),
    "q in dk": "attn1:b=1,sq=1,sk=2,h=1,d=64,dtype=fp16,recipe=repeats:dout=normal:k=normal:q=tiny:v=normal,seed=0",
}
DESIGNS: dict[str, tuple[dict[str, Any], dict[str, float], dict[str, str]]] = {
    "tiny k": ({"seqlen_k": 5, "head_dim": 8, "softmax_scale": 16.0}, {"k": 1e-6}, {}),
    "tiny k behind a sink": (
        {"seqlen_q": 64, "seqlen_k": 1, "head_dim": 8, "softmax_scale": 16.0, "sink": True},
        {"k": 1e-6},
        {"dout": "all"},
    ),
    "tiny q": ({"seqlen_k": 5, "head_dim": 64}, {"q": 1e-6}, {}),
    "tiny equal q": ({"seqlen_k": 5, "head_dim": 64}, {"q": 1e-6}, {"q": "all", "dout": "all"}),
    "many tiny equal q": ({"seqlen_q": 300, "seqlen_k": 40, "head_dim": 8}, {}, {"q": "tiny", "dout": "all"}),
    "equal rows": ({"seqlen_q": 600, "seqlen_k": 2, "head_dim": 8}, {}, {"q": "all", "dout": "all"}),
    "tiny v": ({"seqlen_k": 5, "head_dim": 8, "bias": "additive"}, {"v": 1e-5}, {}),
    "softcap and dropout": (
        {"seqlen_q": 130, "seqlen_k": 60, "head_dim": 8, "softcap": 2.0, "dropout_p": 0.5, "softmax_scale": 0.37},
        {},
        {"v": "mean", "q": "positive"},
    ),
    "a group": ({"nheads": 6, "nheads_kv": 2, "head_dim": 40, "softmax_scale": 0.3}, {}, {}),
}
WITHOUT: dict[str, dict[str, Any]] = {
    "products": {"dscores_products_dtype": "fp32"},
    "unscaled": {"dq_unscaled_dtype": "fp32"},
    "scaled q": {"scaled_q_in_dk": False},
}


def _judged(design: str, dtype: str, seed: int, **undeclared: Any) -> Judged:
    fields, sizes, patterns = DESIGNS[design]
    p = problem(**({"seqlen_q": 16, "nheads": 1, "dtype": dtype} | fields))
    arrays = patterned_arrays(p, seed, **patterns)
    for name, size in sizes.items():
        arrays[name] = (arrays[name].astype(np.float64) * size).astype(arrays[name].dtype)
    scheme = VARIANTS["unfused"](default_scheme(dtype))
    return judge(p, arrays, scheme=scheme, declared=replace(scheme.arithmetic, **undeclared), with_dlse=bool(seed % 2))


def _judged_smallest(name: str, **undeclared: Any) -> Judged:
    case, scheme = Case.parse(SMALLEST[name]), VARIANTS["unfused"](default_scheme("fp16"))
    declared = replace(scheme.arithmetic, **undeclared)
    return judge(case.problem, make_inputs(case).arrays, scheme=scheme, declared=declared)


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_an_unfused_kernel_is_accepted(design: str, dtype: str) -> None:
    for seed in range(4):
        assert _judged(design, dtype, seed).worst() <= 1


@pytest.mark.parametrize("name", SMALLEST)
def test_the_smallest_cases_are_accepted(name: str) -> None:
    assert _judged_smallest(name).worst() <= 1


@pytest.mark.parametrize(
    ("term", "design", "tensor"),
    [
        ("unscaled", "tiny k", "dq"),
        ("unscaled", "tiny k behind a sink", "dq"),
        ("scaled q", "tiny q", "dk"),
        ("scaled q", "tiny equal q", "dk"),
        ("scaled q", "many tiny equal q", "dk"),
    ],
)
def test_the_term_is_needed(term: str, design: str, tensor: str) -> None:
    assert _judged(design, "fp16", 0, **WITHOUT[term]).ratio(tensor) > 1


@pytest.mark.parametrize(("term", "name"), [("products", "P dP"), ("scaled q", "q in dk")])
def test_the_smallest_cases_need_their_terms(term: str, name: str) -> None:
    assert _judged_smallest(name, **WITHOUT[term]).ratio("dk") > 1


@pytest.mark.parametrize("field", ["dscores_products_dtype", "dq_unscaled_dtype"])
def test_a_narrower_format_never_narrows_a_bound(field: str) -> None:
    p = problem(dtype="fp32", sink=True)
    arrays, arithmetic = normal_arrays(p), replace(default_scheme("fp32").arithmetic, delta_from="dprobs")
    wide = bounds_of(p, arrays, arithmetic)
    for name in ("fp16", "bf16"):
        narrow = bounds_of(p, arrays, replace(arithmetic, **{field: name}))
        for tensor in wide:
            assert (narrow[tensor].total >= wide[tensor].total * 0.999).all(), (name, tensor)
        assert (narrow["dq"].total > wide["dq"].total).all()
        wide = narrow


@pytest.mark.parametrize("with_dlse", [False, True])
def test_blocks_do_not_change_the_bound(with_dlse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    p = problem(nheads=4, sink=True, bias="additive", softcap=5.0, softmax_scale=0.3)
    arrays, arithmetic = normal_arrays(p), VARIANTS["unfused"](default_scheme("fp16")).arithmetic
    whole = bounds_of(p, arrays, arithmetic, with_dlse=with_dlse)
    monkeypatch.setattr(derive, "BLOCK_ELEMENTS", 500)
    for name, bound in bounds_of(p, arrays, arithmetic, with_dlse=with_dlse).items():
        np.testing.assert_allclose(bound.total, whole[name].total, rtol=2e-2, atol=1e-12, err_msg=name)


def _queries_equal_in_a_channel() -> Judged:
    # The scale lies 0.9 u above 1, so that every product with the equal channel is rounded down by as much.
    p = problem(seqlen_q=600, seqlen_k=60, nheads=1, head_dim=2, head_dim_v=1, dtype="fp16", softmax_scale=1.00044)
    arrays = patterned_arrays(p, 1)
    arrays["q"][..., 0] = 1.0
    arrays["k"] = (arrays["k"] * 0.01).astype(np.float16)
    arrays["dout"] = np.random.default_rng(0).uniform(1, 2, arrays["dout"].shape).astype(np.float16)
    return judge(p, arrays, scheme=VARIANTS["unfused"](default_scheme("fp16")))


def _deltas_below_a_half_ulp() -> Judged:
    # All v are equal, so delta = dP = 1 + (0.33 .. 0.36) ulp whatever P is, and is rounded down to 1.
    p = problem(seqlen_q=1000, seqlen_k=6, nheads=1, head_dim=1, head_dim_v=2, dtype="fp16", softmax_scale=1.0)
    arrays, random = patterned_arrays(p), np.random.default_rng(0)
    arrays["q"] = random.uniform(1, 2, arrays["q"].shape).astype(np.float16)
    arrays["k"][0, :, 0, 0] = np.linspace(-0.2, 0.2, 6)
    arrays["v"][:] = 1.0, 2.0**-14
    arrays["dout"][..., 0] = 1.0
    arrays["dout"][..., 1] = random.uniform(5.3, 5.7, arrays["dout"].shape[:-1])
    scheme = VARIANTS["unfused"](default_scheme("fp16"))
    kept = dict.fromkeys(("scores_dtype", "probs_normalised_dtype", "dprobs_dtype"), "fp32")
    return judge(p, arrays, scheme=with_arithmetic(scheme, scale_on="scores", scaled_q_in_dk=False, **kept))


def test_a_rounding_of_q_that_rows_share_is_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _queries_equal_in_a_channel().worst() <= 1
    monkeypatch.setattr(key_terms, "storing", lambda values, form: np.zeros_like(values))
    assert _queries_equal_in_a_channel().ratio("dk") > 1


def test_a_rounding_of_delta_that_rows_share_is_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _deltas_below_a_half_ulp().worst() <= 1
    monkeypatch.setattr(delta_errors, "storing", lambda values, form: np.zeros_like(values))
    assert _deltas_below_a_half_ulp().ratio("dk") > 1


@pytest.mark.parametrize("dprobs", ["fp16", "fp32"])
def test_products_that_overflow_their_format_are_not_judged(dprobs: str) -> None:
    p = problem(seqlen_q=16, seqlen_k=5, nheads=1, head_dim=64, dtype="fp16")
    arrays = patterned_arrays(p)
    arrays |= {name: arrays[name] * np.float16(100) for name in ("v", "dout")}
    scheme = with_arithmetic(VARIANTS["unfused"](default_scheme("fp16")), dprobs_dtype=dprobs)
    judged = judge(p, arrays, scheme=scheme)
    for name in ("dq", "dk"):
        lost = ~np.isfinite(judged.outputs[name])
        assert lost.any()
        assert np.isinf(judged.bounds[name].total[lost]).all()
