"""The emulated kernel computes attention, for every feature, in every variant."""

from __future__ import annotations

import numpy as np
import pytest

from tests.verify.candidates.asking import FEATURES, arrays_of, ask, distance, problem_of
from tests.verify.candidates.plain import plain_attention
from verify.candidates import load
from verify.candidates.numpy_tiled import VARIANTS

# Sums of at most 26 terms whose sizes reach 4, one in the forward and one more in the backward, 2^-24 an addition.
FP32_LIMIT = 2 * 26 * 4 * 2.0**-24


@pytest.mark.parametrize("feature", FEATURES)
def test_fp32_outputs_equal_the_formula_to_rounding(feature: str) -> None:
    problem = problem_of(**FEATURES[feature])
    arrays = arrays_of(problem)
    outputs = ask(load("numpy_tiled"), problem, arrays).outputs
    expected = plain_attention(problem, arrays)
    assert outputs.keys() == expected.keys()
    assert max(distance(outputs, expected).values()) < FP32_LIMIT


@pytest.mark.parametrize("feature", ["causal", "boolean", "sink", "dropout", "ragged", "no_keys"])
def test_the_gradient_of_lse_joins_the_backward(feature: str) -> None:
    problem = problem_of(**FEATURES[feature])
    arrays = arrays_of(problem)
    outputs = ask(load("numpy_tiled"), problem, arrays, with_dlse=True).outputs
    assert max(distance(outputs, plain_attention(problem, arrays, with_dlse=True)).values()) < FP32_LIMIT


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_computes_attention(variant: str) -> None:
    problem = problem_of("bf16", causal=True, seqlen_q=40, seqlen_k=50, nheads=4, nheads_kv=2)
    arrays = arrays_of(problem)
    outputs = ask(load(f"numpy_tiled:{variant}"), problem, arrays).outputs
    # A handful of bf16 roundings (2^-8 each) of values of size one; a wrong formula is off by about one.
    assert max(distance(outputs, plain_attention(problem, arrays)).values()) < 16 * 2.0**-8


def test_rows_with_nothing_to_attend_to_are_exactly_empty() -> None:
    problem = problem_of(causal=True, seqlen_q=9, seqlen_k=4)
    outputs = ask(load("numpy_tiled"), problem, arrays_of(problem)).outputs
    assert (outputs["lse"][:, :, :5] == -np.inf).all()
    assert not outputs["out"][:, :5].any()
    assert not outputs["dq"][:, :5].any()


@pytest.mark.parametrize("name", ["q", "k", "v", "dout"])
def test_nan_behind_the_mask_reaches_no_row_that_cannot_see_it(name: str) -> None:
    problem = problem_of(causal=True, seqlen_q=26)
    arrays = arrays_of(problem)
    clean = ask(load("numpy_tiled"), problem, arrays).outputs
    arrays[name][:, 20] = np.nan
    outputs = ask(load("numpy_tiled"), problem, arrays).outputs
    before, after = slice(0, 20), slice(21, None)
    for output in ("out", "dq"):
        np.testing.assert_allclose(outputs[output][:, before], clean[output][:, before], rtol=1e-5, atol=1e-6)
    if name in ("q", "dout"):
        # Later keys are hidden from row 20, so its NaN must not reach their gradients.
        for output in ("dk", "dv"):
            np.testing.assert_allclose(outputs[output][:, after], clean[output][:, after], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_visible_nan_reaches_every_row_that_sees_it(name: str) -> None:
    problem = problem_of(causal=True, seqlen_q=26)
    arrays = arrays_of(problem)
    arrays[name][:, 20] = np.nan
    out = ask(load("numpy_tiled"), problem, arrays).outputs["out"]
    rows = slice(20, 21) if name == "q" else slice(20, None)
    assert np.isnan(out[:, rows]).all()


def test_inputs_are_only_read() -> None:
    problem = problem_of("fp16", bias="additive", sink=True, layout="sliced")
    arrays = arrays_of(problem)
    for array in arrays.values():
        array.flags.writeable = False
    ask(load("numpy_tiled"), problem, arrays)


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_repeated_calls_give_the_same_bits(dtype: str) -> None:
    problem = problem_of(dtype, causal=True, dropout_p=0.2)
    arrays, candidate = arrays_of(problem), load("numpy_tiled")
    first, second = (ask(candidate, problem, arrays).outputs for _ in range(2))
    assert all(first[name].tobytes() == second[name].tobytes() for name in first)
