"""Equal addends of a sum err to the same side: their errors add, and the variance grows by the size of their groups."""

from __future__ import annotations

import numpy as np
import pytest

from tests.verify.tolerance.emulated import Arrays, judge, normal_arrays, problem
from verify.candidates.numpy_tiled import default_scheme
from verify.candidates.numpy_tiled.variants import VARIANTS
from verify.case import Case
from verify.contract import Arithmetic
from verify.inputs import make_inputs
from verify.oracle import reference_outputs
from verify.problem import AttentionProblem
from verify.tolerance import derive_bounds, equal_addends, row_sums
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


NEARLY_EQUAL = (
    "attn1:b=1,sq=8,sk=38,h=1,d=8,dtype=fp32,recipe=repeats:dout=normal:k=needle:q=pairs:v=mean,seed=2644",
    "attn1:b=1,sq=7,sk=64,h=1,d=32,dtype=fp32,recipe=repeats:dout=normal:k=needle:q=pairs:v=mean,seed=9",
)


@pytest.mark.parametrize("case_id", NEARLY_EQUAL)
@pytest.mark.parametrize("step", [1, -1])
def test_products_that_differ_below_the_grid_count_as_equal(case_id: str, step: int) -> None:
    case = Case.parse(case_id)
    arrays = make_inputs(case).arrays
    reference = reference_outputs(case.problem, arrays, backward=False).outputs
    arithmetic = Arithmetic(products_exact=False, exp_ulp=4.0)
    bound = derive_bounds(case.problem, arrays, reference, arithmetic, backward=False)["out"].total[0, :, 0]
    q, k, v = (arrays[name][0, :, 0].astype(np.float64) for name in ("q", "k", "v"))
    scores = case.problem.softmax_scale * (q @ k.T)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True)).astype(np.float32)
    out, total = np.zeros(bound.shape, np.float32), np.zeros((len(q), 1), np.float32)
    for j in range(len(k))[::step]:
        out += weights[:, [j]] * v[j].astype(np.float32)
        total += weights[:, [j]]
    assert (np.abs(out / total - reference["out"][0, :, 0]) <= bound).all()


def test_groups_raise_the_variance_by_their_size() -> None:
    groups = np.repeat(np.array([0.01, 0.02, 0.03], dtype=np.float32), [2, 4, 8])[None, None]
    assert repeated_weights(groups) == pytest.approx((4 + 16 + 64) / 14)
    assert repeated_weights(np.linspace(0.1, 0.9, 50, dtype=np.float32)[None, None]) == 1


def test_generic_weights_repeat_hardly() -> None:
    weights = np.random.default_rng(0).random((2, 3, 64), dtype=np.float32)
    assert repeated_weights(weights).max() < 1.2


def test_few_addends_are_covered_without_the_factor() -> None:
    assert CONFIDENCE * np.sqrt(2 * KAPPA_SQ * (INDEPENDENT + 3) / 3) >= INDEPENDENT
