"""Operands that repeat themselves: equal numbers round alike, so their errors add and no root of their number helps."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.verify.tolerance.emulated import Judged, judge, patterned_arrays, problem
from verify.candidates.numpy_tiled import default_scheme
from verify.candidates.numpy_tiled.variants import VARIANTS
from verify.dtypes import BF16, FP16
from verify.tolerance import delta_errors, gradient_errors, scores
from verify.tolerance.correlation import bin_ratio, over_channels
from verify.tolerance.repetition import group_sizes

CHANNELS = {"q": "channels", "k": "channels", "v": "channels", "dout": "channels"}
DESIGNS = {
    "channels": ({"seqlen_k": 3, "head_dim": 256}, CHANNELS),
    "channels and a sink": ({"head_dim": 8, "head_dim_v": 256, "sink": True}, CHANNELS),
    "ones behind a sink": ({"head_dim": 8, "head_dim_v": 256, "sink": True}, {"v": "all", "dout": "all"}),
    "rows of out": (
        {"seqlen_q": 300, "seqlen_k": 3, "head_dim": 8, "head_dim_v": 64, "sink": True},
        {"k": "all", "q": "mean", "dout": "all"},
    ),
    "out behind a needle": (
        {"seqlen_q": 130, "seqlen_k": 130, "head_dim": 64, "sink": True, "dropout_p": 0.25},
        {"q": "positive", "k": "needle", "v": "two", "dout": "mean"},
    ),
    "just below v": (
        {"seqlen_q": 600, "seqlen_k": 1, "head_dim": 64, "head_dim_v": 256, "sink": True},
        {"q": "channels", "k": "positive", "v": "positive", "dout": "positive"},
    ),
    "rows nearly alike": (
        {
            "seqlen_q": 130,
            "seqlen_k": 17,
            "nheads": 3,
            "nheads_kv": 1,
            "head_dim": 16,
            "head_dim_v": 64,
            "softmax_scale": 1.0,
        },
        {"q": "mean", "k": "two", "v": "positive", "dout": "all"},
    ),
    "few douts": (
        {"seqlen_q": 300, "seqlen_k": 40, "head_dim": 1, "head_dim_v": 64, "sink": True},
        {"q": "all", "k": "channels", "v": "pairs", "dout": "five"},
    ),
    "one dout": (
        {"seqlen_q": 300, "seqlen_k": 40, "head_dim": 16},
        {"q": "five", "k": "five", "v": "mean", "dout": "all"},
    ),
    "one v": ({"seqlen_q": 3, "seqlen_k": 300, "head_dim": 8, "head_dim_v": 64}, {"v": "rows", "k": "mean"}),
}


def _judged(design: str, variant: str, dtype: str, seed: int) -> Judged:
    fields, patterns = DESIGNS[design]
    p = problem(**({"seqlen_q": 16, "seqlen_k": 24, "nheads": 1, "dtype": dtype} | fields))
    arrays = patterned_arrays(p, seed, **patterns)
    return judge(p, arrays, scheme=VARIANTS[variant](default_scheme(dtype)), with_dlse=True)


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize(
    "variant", ["default", "sequential", "eager", "rounded_ds", "l_rounded", "rtz16", "qk_prescaled"]
)
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_honest_kernels_are_accepted(design: str, variant: str, dtype: str) -> None:
    for seed in (0, 3, 6, 9):
        assert _judged(design, variant, dtype, seed).worst() <= 1


def _no_rows(ops: Any, *_: Any) -> Any:
    return np.zeros(ops.lse.shape)


def _nothing(*_: Any, **__: Any) -> None:
    return None


@pytest.mark.parametrize(
    ("modules", "name", "without", "design", "variant", "dtype", "seed"),
    [
        ((scores,), "repeated_over_channels", _nothing, "channels", "sequential", "fp32", 6),
        ((delta_errors,), "_predicted", _no_rows, "rows nearly alike", "rounded_ds", "fp16", 3),
    ],
)
def test_the_factor_is_needed(
    monkeypatch: pytest.MonkeyPatch,
    modules: tuple[ModuleType, ...],
    name: str,
    without: Callable[..., Any],
    design: str,
    variant: str,
    dtype: str,
    seed: int,
) -> None:
    for module in modules:
        monkeypatch.setattr(module, name, without)
    assert _judged(design, variant, dtype, seed).worst() > 1


def test_channels_of_dp_need_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    p = problem(seqlen_q=16, seqlen_k=24, nheads=1, head_dim=8, head_dim_v=256, dtype="fp32")
    arrays, scheme = patterned_arrays(p, 13, v="channels", dout="channels"), VARIANTS["sequential"]
    assert judge(p, arrays, scheme=scheme(default_scheme("fp32")), with_dlse=True).worst() <= 1
    for module in (gradient_errors, delta_errors):
        monkeypatch.setattr(module, "repeated_over_channels", _nothing)
    assert judge(p, arrays, scheme=scheme(default_scheme("fp32")), with_dlse=True).worst() > 1


def test_groups_of_equal_numbers_count_by_their_size() -> None:
    line = np.repeat(np.array([1.5, -1.5, 0.0, 2.0]), [8, 4, 20, 1])[None]
    assert group_sizes(line) == pytest.approx((64 + 16 + 1) / 13)
    assert group_sizes(np.random.default_rng(0).standard_normal((3, 64))) is None


def test_channels_of_one_bin_err_as_one() -> None:
    ones = np.ones((1, 1, 64))
    assert over_channels(ones, 0.3 * ones, ones, FP16) == 64**2
    assert over_channels(ones, 0.3 * ones * np.where(np.arange(64) % 2, 1, -1), ones, FP16) == 64


def test_subnormal_bins_are_those_of_the_subnormal_ulp() -> None:
    tiny = np.array([1e-9, 2e-9, 2.9e-8, 6.0e-8, 6.02e-8, 9.0e-8], dtype=np.float32)[None, None]
    assert bin_ratio(tiny, np.ones_like(tiny), FP16).ravel().tolist() == [3, 3, 3, 2, 2, 1]
    assert bin_ratio(tiny, np.ones_like(tiny), BF16).max() == 1
