"""Each recipe has the property that its name promises, after rounding to the storage dtype, and fits any shape."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from verify.case import Case, Recipe
from verify.dtypes import float_format
from verify.errors import UsageError
from verify.grid.axes import length_fields, make_problem
from verify.inputs import make_inputs
from verify.recipes import Draw, check_recipe, describe, recipe_names
from verify.recipes.draw import coarse
from verify.recipes.scores import needle_index
from verify.strategies import cases

DTYPES = ("fp32", "fp16", "bf16")
Arrays = dict[str, NDArray[np.float64]]


def values(recipe: Recipe, dtype: str = "fp32", seed: int = 1, **fields: Any) -> Arrays:
    """q, k, v, dout of a case in fp64."""
    shape: dict[str, Any] = {"batch": 2, "seqlen_q": 33, "seqlen_k": 65, "nheads": 4, "nheads_kv": 2, "head_dim": 72}
    problem = make_problem(**{**shape, **fields}, dtype=dtype)
    arrays = make_inputs(Case(problem=problem, recipe=recipe, seed=seed)).arrays
    return {name: arrays[name].astype(np.float64) for name in ("q", "k", "v", "dout")}


def scores(arrays: Arrays) -> NDArray[np.float64]:
    """(batch, nheads, seqlen_q, seqlen_k) with the default scale."""
    q, k = arrays["q"], arrays["k"]
    k = np.repeat(k, q.shape[2] // k.shape[2], axis=2)
    return np.einsum("bihd,bjhd->bhij", q, k) / np.sqrt(q.shape[-1])


def test_there_are_at_least_eighteen_recipes_each_described_and_distinct() -> None:
    entries = describe()
    assert len(entries) >= 18
    assert [entry.name for entry in entries] == list(recipe_names())
    assert len({entry.summary for entry in entries}) == len(entries)
    assert all(entry.targets for entry in entries)


def test_an_unknown_recipe_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="recipe='nrmal': expected one of capture, exact_ties"):
        check_recipe(Recipe.of("nrmal"))


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe.of("normal", sdt=1),
        Recipe.of("normal", std="wide"),
        Recipe.of("logits", max=-1.0),
        Recipe.of("needle", position="middle"),
        Recipe.of("exact_ties", count=1),
        Recipe.of("rising_tiles", tile=0),
        Recipe.of("outliers", p=2.0),
        Recipe.of("low_logits", level=0),
        Recipe.of("normal", std=float("inf")),
    ],
    ids=str,
)
def test_bad_parameters_are_refused_in_one_line_with_the_recipe(recipe: Recipe) -> None:
    with pytest.raises(UsageError) as refusal:
        values(recipe)
    assert "\n" not in str(refusal.value)
    assert "expected" in str(refusal.value)


@given(case=cases())
def test_every_recipe_fits_every_shape(case: Case) -> None:
    assert make_inputs(case).arrays["q"].shape[-1] == case.problem.head_dim


@given(
    name=st.sampled_from([name for name in recipe_names() if name != "capture"]),
    lengths=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    head_dim=st.integers(1, 2),
)
def test_every_recipe_fits_lengths_near_zero_and_one_channel(
    name: str, lengths: tuple[int, int], head_dim: int
) -> None:
    arrays = values(Recipe.of(name), seqlen_q=lengths[0], seqlen_k=lengths[1], head_dim=head_dim)
    assert all(np.isfinite(array).all() for array in arrays.values())


@pytest.mark.parametrize("std", [1.0, 3.0])
def test_normal_has_its_standard_deviation_and_dout_has_one(std: float) -> None:
    arrays = values(Recipe.of("normal", std=std))
    assert all(abs(arrays[name].std() / std - 1) < 0.03 for name in ("q", "k", "v"))
    assert abs(arrays["dout"].std() - 1) < 0.03


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("largest", [1.0, 10.0, 100.0, 1000.0, 10000.0])
def test_largest_logit_is_the_promised_one(dtype: str, largest: float) -> None:
    reached = np.abs(scores(values(Recipe.of("logits", max=largest), dtype))).max()
    assert abs(reached / largest - 1) < 0.02


def test_largest_logit_counts_valid_keys_only() -> None:
    fields = length_fields("lengths", (9, 9), (5, 0))
    arrays = values(Recipe.of("logits", max=100.0), **fields)
    assert abs(np.abs(scores(arrays)[0, :, :, :5]).max() - 100) < 2


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("level", [22.0, 100.0])
def test_low_logits_are_all_about_minus_level(dtype: str, level: float) -> None:
    found = scores(values(Recipe.of("low_logits", level=level), dtype))
    assert abs(found.mean() + level) < 0.02 * level
    assert found.max() < -level + 6
    assert found.std() > 0.1


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_unscaled_low_logits_lie_below_finite_guard_values(dtype: str) -> None:
    unscaled = scores(values(Recipe.of("low_logits", unscaled=60000.0), dtype)) * np.sqrt(72)
    assert unscaled.max() < -5e4


def test_identical_queries_and_keys_repeat_one_row() -> None:
    q = values(Recipe.of("identical_queries"))["q"]
    k = values(Recipe.of("identical_keys"))["k"]
    for array in (q, k):
        np.testing.assert_array_equal(array, np.broadcast_to(array[:, :1], array.shape))
        assert (array[0] != array[1]).any()


def test_two_keys_has_two_keys_of_each_head() -> None:
    k = values(Recipe.of("two_keys"))["k"]
    assert {len(np.unique(k[b, :, h], axis=0)) for b in range(2) for h in range(2)} == {2}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [2, 4])
def test_exact_ties_share_the_maximum_of_every_row(dtype: str, count: int) -> None:
    arrays = values(Recipe.of("exact_ties", count=count), dtype)
    leaders = np.repeat(arrays["k"][:, :1] == arrays["k"], 2, axis=2).all(axis=-1)
    assert (leaders.sum(axis=1) == count).all()
    found = scores(arrays)
    tied = np.swapaxes(leaders, 1, 2)[:, :, None, :]
    assert (np.where(tied, found, np.inf).min(axis=-1) > np.where(tied, -np.inf, found).max(axis=-1)).all()
    assert arrays["v"].max() <= 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_near_ties_differ_but_stay_within_a_fraction_of_the_maximum(dtype: str) -> None:
    arrays = values(Recipe.of("near_ties"), dtype)
    best = np.sort(scores(arrays), axis=-1)[..., -2:]
    gap = best[..., 1] - best[..., 0]
    assert (gap > 0).mean() > 0.9
    assert np.median(gap / best[..., 1]) < 0.01
    assert {len(np.unique(arrays["k"][b, [0, 16, 32, 48], h], axis=0)) for b in range(2) for h in range(2)} == {4}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("position", "key"), [("first", 0), ("last", 64), ("tile_edge", 64), (7, 7), (500, 64)])
def test_the_needle_wins_by_the_gap_in_every_row(dtype: str, position: str | int, key: int) -> None:
    found = scores(values(Recipe.of("needle", position=position, gap=10.0), dtype))
    others = np.delete(found, key, axis=-1).max(axis=-1)
    assert (found[..., key] - others > 9.9).all()


def test_the_needle_sits_inside_each_sequence() -> None:
    arrays = values(Recipe.of("needle", position="last"), **length_fields("lengths", (3, 3), (5, 60)))
    assert scores(arrays)[0, :, :, :5].argmax(axis=-1).tolist() == [[4] * 3] * 4
    assert scores(arrays)[1, :, :, :60].argmax(axis=-1).tolist() == [[59] * 3] * 4


@pytest.mark.parametrize(("keys", "expected"), [(1, 0), (16, 15), (17, 16), (65, 64), (129, 128), (300, 256)])
def test_tile_edge_opens_the_last_tile(keys: int, expected: int) -> None:
    assert needle_index("tile_edge", keys) == expected


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "sign"), [("rising_tiles", 1), ("falling_tiles", -1)])
@pytest.mark.parametrize("tile", [16, 32, 64])
def test_tile_maxima_move_strictly_one_way(dtype: str, name: str, sign: int, tile: int) -> None:
    found = scores(values(Recipe.of(name), dtype, seqlen_k=256))
    maxima = found.reshape(*found.shape[:3], -1, tile).max(axis=-1)
    assert (sign * np.diff(maxima, axis=-1) > 0).all()


def test_outliers_have_the_variance_of_the_mixture() -> None:
    q = values(Recipe.of("outliers", p=0.05), seqlen_q=400)["q"]
    assert abs(q.var() / (1 + 0.05 * 100) - 1) < 0.05
    assert np.abs(q).max() > 15


def test_v_constant_repeats_one_row() -> None:
    v = values(Recipe.of("v_constant"))["v"]
    np.testing.assert_array_equal(v, np.broadcast_to(v[:, :1], v.shape))


@pytest.mark.parametrize("dtype", DTYPES)
def test_v_mean_has_its_mean(dtype: str) -> None:
    assert abs(values(Recipe.of("v_mean", mean=100.0), dtype)["v"].mean() - 100) < 0.1


@pytest.mark.parametrize("name", ["v_cancel", "v_trend"])
def test_sums_over_v_nearly_cancel(name: str) -> None:
    v = values(Recipe.of(name), seqlen_k=64)["v"]
    assert np.abs(v.sum(axis=1)).max() < 0.01 * np.abs(v).sum(axis=1).min()
    assert np.abs(v.cumsum(axis=1)).max() > 0.9


def test_v_zero_channel_is_zero_in_one_channel_only() -> None:
    zero = (values(Recipe.of("v_zero_channel"))["v"] == 0).all(axis=(0, 1, 2))
    assert np.flatnonzero(zero).tolist() == [36]


@pytest.mark.parametrize("dtype", DTYPES)
def test_integers_are_whole_and_the_same_in_every_dtype(dtype: str) -> None:
    arrays, exact = values(Recipe.of("integers"), dtype), values(Recipe.of("integers"), "fp32")
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, np.rint(array))
        np.testing.assert_array_equal(array, exact[name])
    assert set(np.unique(arrays["q"])) == {-2.0, -1.0, 0.0, 1.0, 2.0}


@pytest.mark.parametrize("dtype", DTYPES)
def test_subnormal_values_lie_below_the_smallest_normal_and_are_not_zero(dtype: str) -> None:
    v = np.abs(values(Recipe.of("subnormal"), dtype)["v"])
    assert v.max() < 2.0 ** float_format(dtype).min_exponent
    assert (v > 0).mean() > 0.9


@pytest.mark.parametrize("dropout_p", [0.0, 0.9])
def test_near_overflow_leaves_room_for_dropout(dropout_p: float) -> None:
    v = np.abs(values(Recipe.of("near_overflow"), "fp16", dropout_p=dropout_p)["v"]) / (1 - dropout_p)
    assert 0.89 * 65000 < v.min() <= v.max() < 65504


def test_zero_queries_are_zero() -> None:
    assert not values(Recipe.of("zero_queries"))["q"].any()


def test_kdim_trend_has_partial_sums_far_above_the_total() -> None:
    arrays = values(Recipe.of("kdim_trend"))
    products = arrays["q"][:, :1, 0] * arrays["k"][:, :1, 0]
    assert np.abs(products.cumsum(axis=-1)).max() > 4 * np.abs(products.sum(axis=-1)).max()


def test_kmean_shifts_all_scores_of_a_row_alike() -> None:
    found = scores(values(Recipe.of("kmean")))
    assert np.abs(found).max() > 20
    assert np.abs(found - found.mean(axis=-1, keepdims=True)).max() < 5


def test_streams_do_not_depend_on_one_another() -> None:
    draw = Draw(problem=make_problem(), seed=5)
    alone = draw.normal("q", (4,))
    draw.normal("bias", (100,))
    np.testing.assert_array_equal(draw.normal("q", (4,)), alone)
    assert (draw.normal("k", (4,)) != alone).all()


@given(st.floats(1e-30, 1e30))
def test_coarse_factors_are_near_and_absorb_the_order_of_summation(factor: float) -> None:
    assert abs(coarse(factor) / factor - 1) <= 2.0**-10
    assert coarse(coarse(factor)) == coarse(factor)
