"""Equal addends of a sum err to the same side: their errors add, and the variance grows by the size of their groups."""

from __future__ import annotations

import numpy as np
import pytest

from tests.verify.tolerance.emulated import Arrays, judge, normal_arrays, problem
from verify.candidates.numpy_tiled import default_scheme
from verify.candidates.numpy_tiled.variants import VARIANTS
from verify.problem import AttentionProblem
from verify.tolerance import equal_addends, row_sums
from verify.tolerance.equal_addends import repeated_weights
from verify.tolerance.repetition import INDEPENDENT
from verify.tolerance.roundings import CONFIDENCE, KAPPA_SQ


def _few_weights(p: AttentionProblem, distinct: int, seed: int) -> Arrays:
    """One key leads every row; the others share a few scores; v = 1."""
    rng = np.random.default_rng(seed)
    arrays = normal_arrays(p)
    q, k = np.zeros_like(arrays["q"]), np.zeros_like(arrays["k"])
    q[..., 0] = 1
    k[..., 0] = rng.choice(rng.uniform(0, 2, distinct), k.shape[:-1])
    k[:, 0, :, 0] = 9
    return arrays | {"q": q, "k": k / np.float32(p.softmax_scale), "v": np.ones_like(arrays["v"])}


def _worst(variant: str, distinct: int, seqlen_k: int, seed: int) -> float:
    p = problem(seqlen_q=1, seqlen_k=seqlen_k, nheads=1, head_dim=8, dtype="fp32")
    return judge(p, _few_weights(p, distinct, seed), scheme=VARIANTS[variant](default_scheme("fp32"))).worst()


@pytest.mark.parametrize("variant", ["sequential", "one_tile", "eager"])
@pytest.mark.parametrize("distinct", [1, 3, 22])
@pytest.mark.parametrize(("seqlen_k", "seed"), [(40, 21), (100, 21), (257, 0), (257, 1), (600, 0)])
def test_sums_of_few_distinct_weights_stay_within_the_bound(
    variant: str, distinct: int, seqlen_k: int, seed: int
) -> None:
    assert _worst(variant, distinct, seqlen_k, seed) <= 1


def test_the_factor_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (equal_addends, row_sums):
        monkeypatch.setattr(module, "INDEPENDENT", 10**6)
    assert _worst("one_tile", 1, 40, 21) > 1


def test_groups_raise_the_variance_by_their_size() -> None:
    groups = np.repeat(np.array([0.01, 0.02, 0.03], dtype=np.float32), [2, 4, 8])[None, None]
    assert repeated_weights(groups) == pytest.approx((4 + 16 + 64) / 14)
    assert repeated_weights(np.linspace(0.1, 0.9, 50, dtype=np.float32)[None, None]) == 1


def test_generic_weights_repeat_hardly() -> None:
    weights = np.random.default_rng(0).random((2, 3, 64), dtype=np.float32)
    assert repeated_weights(weights).max() < 1.2


def test_few_addends_are_covered_without_the_factor() -> None:
    assert CONFIDENCE * np.sqrt(2 * KAPPA_SQ * (INDEPENDENT + 3) / 3) >= INDEPENDENT
