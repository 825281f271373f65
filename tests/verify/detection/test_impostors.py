"""Every impostor is wrong in the way that its description says."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from tests.verify.candidates.asking import FEATURES, arrays_of, ask, problem_of
from verify.candidate import Array, output_shapes
from verify.candidates import load
from verify.candidates.numpy_tiled import build as build_honest
from verify.detection.impostors import build, impostor_names
from verify.errors import UsageError
from verify.problem import AttentionProblem

GENERIC = problem_of("bf16", causal=True, pattern="boolean", keep_fraction=0.5, nheads=4, nheads_kv=2)


def differing(name: str, problem: AttentionProblem, arrays: Mapping[str, Array]) -> set[str]:
    """Outputs whose bits, shape or dtype are not those of the honest candidate."""
    honest = ask(load("numpy_tiled"), problem, arrays).outputs
    got = ask(build(name), problem, arrays).outputs
    assert got.keys() == honest.keys()
    same = {key for key in got if got[key].dtype == honest[key].dtype and got[key].tobytes() == honest[key].tobytes()}
    return {key for key in got if key not in same or got[key].shape != honest[key].shape}


@pytest.mark.parametrize("name", [name for name in impostor_names() if name not in ("mutates_inputs", "nan_swallowed")])
def test_an_impostor_differs_from_the_honest_kernel_on_a_generic_case(name: str) -> None:
    assert differing(name, GENERIC, arrays_of(GENERIC))


@pytest.mark.parametrize("name", impostor_names())
def test_an_impostor_runs_on_every_feature(name: str) -> None:
    impostor = build(name)
    for fields in FEATURES.values():
        problem = problem_of(**fields)
        arrays = arrays_of(problem)
        outputs = ask(impostor, problem, arrays).outputs
        if name != "wrong_shape":
            assert {key: array.shape for key, array in outputs.items()} == output_shapes(problem, arrays)


def test_descriptions_are_single_lines_and_all_different() -> None:
    lines = [build(name).description for name in impostor_names()]
    assert all(line and "\n" not in line for line in lines)
    assert len(set(lines)) == len(lines)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("one_nan", {"out"}),
        ("mean_of_v", {"out"}),
        ("dead_rows_mean", {"out"}),
        ("permuted_rows", {"out"}),
        ("out_truncated", {"out"}),
        ("base2_lse", {"lse"}),
        ("no_scale_dk", {"dk"}),
        ("group_not_summed", {"dk", "dv"}),
        ("dropped_delta", {"dq", "dk"}),
    ],
)
def test_only_the_faulty_outputs_change(name: str, expected: set[str]) -> None:
    assert differing(name, GENERIC, arrays_of(GENERIC)) == expected


@pytest.mark.parametrize(
    "feature", ["plain", "causal", "causal_topleft", "window", "boolean", "block_sparse", "ragged", "lengths", "paged"]
)
def test_a_shifted_mask_shows_under_every_kind_of_mask(feature: str) -> None:
    problem = problem_of(**FEATURES[feature])
    assert "out" in differing("mask_off_by_one", problem, arrays_of(problem))


@pytest.mark.parametrize("feature", ["plain", "causal", "boolean", "block_sparse", "ragged", "lengths", "paged"])
def test_a_dropped_key_shows_wherever_a_row_sees_the_last_key(feature: str) -> None:
    problem = problem_of(**FEATURES[feature])
    assert "out" in differing("last_key_dropped", problem, arrays_of(problem))


def test_a_swallowed_nan_becomes_zero() -> None:
    problem = problem_of()
    arrays = arrays_of(problem)
    arrays["q"][0, 3, 1, 2] = np.nan
    assert np.isnan(ask(load("numpy_tiled"), problem, arrays).outputs["out"][0, 3, 1]).all()
    assert not ask(build("nan_swallowed"), problem, arrays).outputs["out"][0, 3, 1].any()


def test_a_stale_output_is_that_of_the_previous_call() -> None:
    impostor, first, second = build("stale_output"), arrays_of(GENERIC, seed=1), arrays_of(GENERIC, seed=2)
    assert not ask(impostor, GENERIC, first).outputs["out"].any()
    stale = ask(impostor, GENERIC, second).outputs
    honest = ask(load("numpy_tiled"), GENERIC, first).outputs
    assert all(stale[name].tobytes() == honest[name].tobytes() for name in honest)


def test_spoilt_inputs_come_with_the_right_answer() -> None:
    arrays = arrays_of(GENERIC)
    before = arrays["q"].copy()
    honest = ask(load("numpy_tiled"), GENERIC, arrays).outputs
    got = ask(build("mutates_inputs"), GENERIC, arrays).outputs
    assert all(got[name].tobytes() == honest[name].tobytes() for name in honest)
    assert (arrays["q"] != before).any()


@pytest.mark.parametrize("head_dim_v", [8, 12])
def test_a_returned_input_shares_its_memory(head_dim_v: int) -> None:
    problem = problem_of(head_dim_v=head_dim_v)
    arrays = arrays_of(problem)
    assert np.shares_memory(ask(build("returns_input_view"), problem, arrays).outputs["out"], arrays["q"])


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_truncated_outputs_never_exceed_the_accumulator(dtype: str) -> None:
    problem = problem_of(dtype)
    arrays = arrays_of(problem)
    exact = ask(build_honest("out_fp32"), problem, arrays).outputs["out"]
    out = ask(build("out_truncated"), problem, arrays).outputs["out"].astype(np.float32)
    assert (np.abs(out) <= np.abs(exact)).all()
    assert np.max(1.0 - out / exact) < (2.0**-7 if dtype == "bf16" else 2.0**-10)


def test_the_wrong_head_is_read_only_where_heads_are_shared_unevenly() -> None:
    shared, own = problem_of(nheads=4, nheads_kv=2), problem_of(nheads=4, nheads_kv=4)
    assert differing("wrong_kv_head", shared, arrays_of(shared)) == {"out", "lse", "dq", "dk", "dv"}
    assert not differing("wrong_kv_head", own, arrays_of(own))


def test_without_delta_the_score_gradient_is_p_times_dp() -> None:
    problem = problem_of(nheads=1)
    arrays = arrays_of(problem)
    q, k, v, dout = (arrays[name][:, :, 0].astype(float) for name in ("q", "k", "v", "dout"))
    scores = q @ k.swapaxes(1, 2) * problem.softmax_scale
    probs = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
    expected = (probs * (dout @ v.swapaxes(1, 2))) @ k * problem.softmax_scale
    got = ask(build("dropped_delta"), problem, arrays).outputs["dq"][:, :, 0]
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_unknown_impostors_are_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"impostor='honest': expected one of zeros, "):
        build("honest")
