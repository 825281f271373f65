"""Addends below the rounding grid of their sum are lost one after the other: errors of one sign, which add in full."""

from __future__ import annotations

import numpy as np
import pytest

from tests.verify.tolerance.emulated import Arrays, Judged, judge, normal_arrays, problem
from verify.candidates.numpy_tiled import default_scheme
from verify.candidates.numpy_tiled.variants import VARIANTS
from verify.problem import AttentionProblem
from verify.tolerance.roundings import CONFIDENCE, KAPPA_SQ
from verify.tolerance.swallowed import coherent


def _behind_a_needle(p: AttentionProblem, gap: float) -> Arrays:
    """The first key wins every row by `gap`; all other scores are about 0."""
    arrays = normal_arrays(p)
    q, k = np.zeros_like(arrays["q"]), arrays["k"] * np.float32(1e-3)
    q[..., 0] = 1
    k[..., 0] = 0
    k[:, 0, :, 0] = gap / p.softmax_scale
    return arrays | {"q": q, "k": k, "v": np.ones_like(arrays["v"])}


def _judged(seqlen_k: int, gap: float, variant: str) -> Judged:
    p = problem(seqlen_q=4, seqlen_k=seqlen_k, nheads=1, head_dim=8, dtype="fp32")
    return judge(p, _behind_a_needle(p, gap), scheme=VARIANTS[variant](default_scheme("fp32")))


@pytest.mark.parametrize("variant", ["sequential", "one_tile", "split"])
@pytest.mark.parametrize("seqlen_k", [32, 64, 256])
@pytest.mark.parametrize("gap", [15.5, 16.6, 17.0])
def test_keys_behind_a_needle_may_vanish_from_the_sums(variant: str, seqlen_k: int, gap: float) -> None:
    judged = _judged(seqlen_k, gap, variant)
    assert judged.worst() <= 1


@pytest.mark.parametrize("head_dim", [32, 256])
@pytest.mark.parametrize("share", [0.24, 0.45, 0.9])
def test_channels_beside_a_large_one_may_vanish_from_the_scores(head_dim: int, share: float) -> None:
    p = problem(seqlen_q=4, seqlen_k=16, nheads=1, head_dim=head_dim, dtype="fp32", softmax_scale=1.0)
    arrays = normal_arrays(p)
    q, k = np.ones_like(arrays["q"]), np.full_like(arrays["k"], 10 * 2.0**-23 * share)
    k[..., 0] = 10 + np.random.default_rng(1).random(k.shape[:-1])
    judged = judge(p, arrays | {"q": q, "k": k}, scheme=VARIANTS["sequential"](default_scheme("fp32")))
    assert judged.worst() <= 1


def test_their_term_is_needed_and_stays_near_what_can_be_lost() -> None:
    judged = _judged(64, 15.5, "sequential")
    bound = judged.bounds["out"]
    without = bound.total - bound.hard["swallowed"]
    assert (judged.error("out") > without).any()
    assert (bound.hard["swallowed"] <= 2 * 64 * 2.0**-24 * 1.01).all()


@pytest.mark.parametrize("name", ["out", "lse", "dq", "dk", "dv"])
def test_generic_rows_swallow_next_to_nothing(name: str) -> None:
    p = problem(dtype="fp32")
    bound = judge(p, normal_arrays(p)).bounds[name]
    assert np.median(bound.hard.get("swallowed", np.zeros(1)) / bound.total) < 1e-3


@pytest.mark.parametrize("times", [1, 18, 64, 1000])
def test_repeated_roundings_are_covered_when_all_err_to_one_side(times: int) -> None:
    assert CONFIDENCE * np.sqrt(KAPPA_SQ * coherent(times)) >= times * (1 - 1e-12) or times <= 18
    assert coherent(times) >= times
