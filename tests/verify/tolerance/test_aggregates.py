"""The aggregates accept honest kernels and see what single elements do not: truncation and lost precision."""

from __future__ import annotations

import numpy as np
import pytest

from tests.verify.tolerance.emulated import Judged, judge, normal_arrays, problem
from verify.candidates.numpy_tiled import default_scheme
from verify.case import Recipe
from verify.dtypes import float_format
from verify.tolerance import aggregates

TENSORS = ("out", "dq", "dk", "dv")


def _signed(judged: Judged, name: str) -> np.ndarray:
    return judged.outputs[name] - judged.reference[name]


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("name", TENSORS)
@pytest.mark.parametrize("seed", range(3))
def test_honest_kernel_stays_within_both_limits(dtype: str, name: str, seed: int) -> None:
    p = problem(dtype=dtype, seqlen_q=96, seqlen_k=96, nheads=4)
    judged = judge(p, normal_arrays(p, seed))
    error, bound = _signed(judged, name), judged.bounds[name]
    assert abs(aggregates.gain_score(error, judged.reference[name], bound)) < aggregates.GAIN_LIMIT
    assert 0.5 < aggregates.rms_ratio(error, bound) < aggregates.RMS_LIMIT


@pytest.mark.parametrize("name", TENSORS)
def test_truncated_output_has_a_gain(name: str) -> None:
    p = problem(seqlen_q=96, seqlen_k=96, nheads=4)
    judged = judge(p, normal_arrays(p), out_dtype="fp32", grad_dtype="fp32")
    accurate = judge(p, normal_arrays(p))
    exact = judged.outputs[name]
    half = float_format("fp16").half_ulp(exact)
    truncated = np.trunc(exact / (2 * half)) * 2 * half
    error = truncated - judged.reference[name]
    assert (np.abs(error) <= accurate.bounds[name].total).mean() > 0.99
    assert aggregates.gain_score(error, judged.reference[name], accurate.bounds[name]) < -aggregates.GAIN_LIMIT


def test_scores_in_low_precision_raise_the_rms() -> None:
    p = problem(seqlen_q=96, seqlen_k=96, nheads=4)
    accurate = judge(p, normal_arrays(p))
    lost = judge(p, normal_arrays(p), scores_dtype="bf16")
    error = _signed(lost, "out")
    assert aggregates.rms_ratio(error, accurate.bounds["out"]) > aggregates.RMS_LIMIT
    assert aggregates.rms_score(error, accurate.bounds["out"]) > aggregates.GAIN_LIMIT


def test_a_row_counts_once_however_many_channels_share_its_error() -> None:
    p = problem(seqlen_q=16, seqlen_k=96, nheads=1, head_dim=80)
    judged = judge(p, normal_arrays(p))
    bound = judged.bounds["out"]
    shared = np.sqrt(1 / aggregates.weights(bound)) * 3.0
    assert aggregates.rms_ratio(shared, bound) > aggregates.RMS_LIMIT
    assert aggregates.rms_score(shared, bound) <= 4.0


def test_systematic_error_that_the_contract_permits_is_no_gain() -> None:
    p = problem(seqlen_q=256, seqlen_k=256, nheads=4, dtype="bf16")
    judged = judge(p, normal_arrays(p), accumulate="rtz", accumulate_chunk=16)
    for name in TENSORS:
        score = aggregates.gain_score(_signed(judged, name), judged.reference[name], judged.bounds[name])
        assert abs(score) < aggregates.GAIN_LIMIT


@pytest.mark.parametrize(
    ("recipe", "dtype", "expected"),
    [
        (Recipe.of("normal"), "bf16", True),
        (Recipe.of("logits", max=10.0), "fp16", True),
        (Recipe.of("logits", max=1000.0), "fp16", False),
        (Recipe.of("identical_keys"), "fp16", False),
        (Recipe.of("normal"), "fp32", False),
    ],
)
def test_applies_to_generic_low_precision_cases_only(recipe: Recipe, dtype: str, expected: bool) -> None:
    p = problem(dtype=dtype)
    assert aggregates.applicable(p, recipe, default_scheme(dtype).arithmetic) is expected


def test_key_score_names_the_key_whose_weight_is_wrong() -> None:
    p = problem(nheads=1, seqlen_q=512, seqlen_k=24, dtype="fp32")
    arrays = normal_arrays(p)
    judged = judge(p, arrays)
    q, k, v = (arrays[name][0].swapaxes(0, 1).astype(np.float64) for name in ("q", "k", "v"))
    scores = p.softmax_scale * q @ k.swapaxes(1, 2)
    wrong = scores.copy()
    wrong[..., 17] += 0.5
    probs, moved = (np.exp(x) / np.exp(x).sum(axis=-1, keepdims=True) for x in (scores, wrong))
    error = ((moved - probs) @ v).swapaxes(0, 1)[None]
    bound = judged.bounds["out"]
    score = aggregates.key_score(error[0].swapaxes(0, 1), probs, v, probs @ v, _head_major(bound))
    assert int(np.abs(score).argmax()) == 17


def _head_major(bound: aggregates.Bound) -> aggregates.Bound:
    """The bound of a single sequence with heads leading."""

    def turn(array: np.ndarray) -> np.ndarray:
        return array[0].swapaxes(0, 1)

    return aggregates.Bound(
        tensor=bound.tensor,
        total=turn(bound.total),
        hard={name: turn(value) for name, value in bound.hard.items()},
        variances={name: turn(value) for name, value in bound.variances.items()},
        confidence=bound.confidence,
        output_half_ulp=turn(bound.output_half_ulp),
        worst_case=turn(bound.worst_case),
        reference=turn(bound.reference),
        form=bound.form,
    )
