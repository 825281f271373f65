"""Inputs of a case: the same bits for the same id, independent streams, consistent forms, poison where nobody reads."""

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given

from verify.candidate import output_shapes
from verify.case import Case, Recipe
from verify.grid.axes import length_fields, make_problem
from verify.inputs import make_inputs, round_to
from verify.problem import AttentionProblem
from verify.strategies import cases

NORMAL = Recipe.of("normal")
ROWS, KEYS = (3, 0, 5), (4, 7, 1)
# SHA-256 prefixes of the arrays. A change here changes what every recorded case id means: raise the id's version then.
GOLDEN = [
    (
        "attn1:b=1,sq=16,sk=16,h=1,d=64,dtype=fp32,recipe=normal,seed=0",
        "b9c9ad1be10a1bb0",
    ),
    (
        "attn1:b=2,sq=5,sk=33,h=6,hkv=2,d=72,dtype=bf16,causal=1,layout=sliced,recipe=outliers:p=0.01,seed=1",
        "9054e3b9102355a2",
    ),
    (
        "attn1:b=2,sq=3,sk=40,h=2,d=8,dtype=fp16,bias=additive,sink=1,lenk=33+0,page=16,recipe=integers,seed=2",
        "ca2df42528acb55b",
    ),
    (
        "attn1:b=1,sq=17,sk=65,h=1,d=80,dtype=fp16,pattern=boolean,dropout=0.25,recipe=logits:max=100.0,seed=3",
        "c1d233b5940e9015",
    ),
    (
        "attn1:b=3,sq=5,sk=7,h=1,d=32,dtype=bf16,cuq=0+3+3+8,cuk=0+4+11+12,recipe=needle:position=last,seed=4",
        "6d972fab6a7ee744",
    ),
    (
        "attn1:b=1,sq=33,sk=64,h=4,d=64,dtype=fp32,pattern=block_sparse,bias=alibi,recipe=rising_tiles,seed=5",
        "2642063a8847683f",
    ),
]


def case_of(seed: int = 1, recipe: Recipe = NORMAL, **fields: Any) -> Case:
    return Case(problem=make_problem(**fields), recipe=recipe, seed=seed)


@pytest.mark.parametrize(("case_id", "expected"), GOLDEN)
def test_a_case_id_means_the_same_bits_for_ever(case_id: str, expected: str) -> None:
    assert make_inputs(Case.parse(case_id)).digest()[:16] == expected


@given(case=cases())
def test_the_same_id_gives_the_same_bits_twice(case: Case) -> None:
    first, second = make_inputs(case), make_inputs(Case.parse(case.case_id))
    assert (first.digest(), first.buffer_digest()) == (second.digest(), second.buffer_digest())


def test_another_seed_gives_other_values() -> None:
    assert make_inputs(case_of(seed=1)).digest() != make_inputs(case_of(seed=2)).digest()


@given(case=cases())
def test_arrays_have_the_documented_shapes_and_dtypes(case: Case) -> None:
    p, arrays = case.problem, make_inputs(case).arrays
    shapes = output_shapes(p, arrays)
    assert arrays["dout"].shape == shapes["out"]
    assert (arrays["dlse"].shape, arrays["dlse"].dtype) == (shapes["lse"], np.float32)
    assert {str(arrays[name].dtype) for name in ("q", "k", "v", "dout")} == {
        {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}[p.dtype]
    }
    full = (p.batch, p.nheads, p.seqlen_q, p.seqlen_k)
    for name in ("mask", "dropout_keep"):
        assert name not in arrays or (arrays[name].shape, arrays[name].dtype) == (full, bool)
    assert ("bias" in arrays, "sink" in arrays) == (p.bias == "additive", p.sink)
    assert ("mask" in arrays, "dropout_keep" in arrays) == (p.pattern == "boolean", p.dropout_p > 0)


def test_features_do_not_change_the_values_of_the_operands() -> None:
    plain = make_inputs(case_of(nheads=2)).arrays
    rich = make_inputs(case_of(nheads=2, bias="additive", sink=True, dropout_p=0.5, pattern="boolean")).arrays
    for name in ("q", "k", "v", "dout", "dlse"):
        np.testing.assert_array_equal(rich[name], plain[name])


def test_ragged_rows_are_the_rows_of_the_padded_problem() -> None:
    padded = make_inputs(case_of(**length_fields("plain", (5, 5, 5), KEYS))).arrays
    packed = make_inputs(case_of(**length_fields("ragged", ROWS, KEYS))).arrays
    for name, lengths in (("q", ROWS), ("dout", ROWS), ("k", KEYS), ("v", KEYS)):
        expected = np.concatenate([padded[name][at, :length] for at, length in enumerate(lengths)])
        np.testing.assert_array_equal(packed[name], expected)
    expected = np.concatenate([padded["dlse"][at, :, :length] for at, length in enumerate(ROWS)], axis=1)
    np.testing.assert_array_equal(packed["dlse"], expected)


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_pages_hold_the_keys_of_the_padded_problem(page_size: int) -> None:
    padded = make_inputs(case_of(**length_fields("lengths", (2, 2, 2), KEYS))).arrays
    paged = make_inputs(case_of(**length_fields("paged", (2, 2, 2), KEYS, page_size))).arrays
    for sequence, keys in enumerate(KEYS):
        rows = paged["k"][paged["page_table"][sequence]].reshape(-1, 1, 64)
        np.testing.assert_array_equal(rows[:keys], padded["k"][sequence, :keys])


def test_keys_beyond_the_length_are_poison_and_the_others_are_not() -> None:
    k = make_inputs(case_of(**length_fields("lengths", (2, 2, 2), KEYS))).arrays["k"]
    for sequence, keys in enumerate(KEYS):
        assert np.isnan(k[sequence, keys:]).all()
        assert np.isfinite(k[sequence, :keys]).all()


def test_unused_pages_and_slots_are_poison_and_unused_entries_name_such_a_page() -> None:
    arrays = make_inputs(case_of(**length_fields("paged", (2, 2, 2), KEYS, 4))).arrays
    assert np.isfinite(arrays["v"]).all(axis=(1, 2, 3)).sum() == 2
    assert int(np.isfinite(arrays["v"][..., 0, 0]).sum()) == sum(KEYS)
    assert np.isnan(arrays["v"][arrays["page_table"][2, 1]]).all()
    assert len(arrays["v"]) == sum(-(-keys // 4) for keys in KEYS) + 2


@pytest.mark.parametrize("seed", range(5))
def test_page_tables_are_shuffled_without_sharing_a_page(seed: int) -> None:
    table = make_inputs(case_of(seed, **length_fields("paged", (1, 1), (60, 64), 4))).arrays["page_table"]
    used = [*table[0, :15], *table[1, :16]]
    assert len(set(used)) == 31
    assert used != sorted(used)


@given(case=cases())
def test_operands_are_finite_wherever_a_kernel_may_read(case: Case) -> None:
    p, arrays = case.problem, make_inputs(case).arrays
    names = ["q", "dout", "dlse", *(("k", "v") if p.seqlens_k is None else ())]
    assert all(np.isfinite(arrays[name].astype(np.float64)).all() for name in names)


def test_masks_have_rows_that_see_nothing_and_keep_their_share() -> None:
    mask = make_inputs(case_of(seqlen_q=200, seqlen_k=200, pattern="boolean")).arrays["mask"]
    dead = ~mask.any(axis=-1)
    assert 1 <= dead.sum() <= 40
    assert abs(mask[~dead].mean() - 0.75) < 0.02


def test_block_masks_have_one_flag_a_block_and_dead_row_blocks() -> None:
    fields = {"seqlen_q": 1000, "seqlen_k": 100, "pattern": "block_sparse", "block_size": (8, 16)}
    mask = make_inputs(case_of(**fields)).arrays["block_mask"]
    assert mask.shape == (1, 1, 125, 7)
    assert (~mask.any(axis=-1)).any()


@pytest.mark.parametrize(("keep", "share"), [(0.0, 0.0), (1.0, 1.0)])
def test_extreme_keep_fractions_are_exact(keep: float, share: float) -> None:
    mask = make_inputs(case_of(seqlen_q=64, pattern="boolean", keep_fraction=keep)).arrays["mask"]
    assert mask.mean() == share


def test_dropout_keeps_one_minus_p() -> None:
    keep = make_inputs(case_of(seqlen_q=200, seqlen_k=200, dropout_p=0.9)).arrays["dropout_keep"]
    assert abs(keep.mean() - 0.1) < 0.01


def test_alibi_slopes_are_the_geometric_sequence_of_the_paper() -> None:
    slopes = make_inputs(case_of(nheads=8, bias="alibi")).arrays["alibi_slopes"]
    np.testing.assert_array_equal(slopes, [2.0**-h for h in range(1, 9)])


@pytest.mark.parametrize("recipe", [NORMAL, Recipe.of("low_logits"), Recipe.of("logits", max=1000.0)])
def test_sink_logits_lie_near_the_scores(recipe: Recipe) -> None:
    case = case_of(recipe=recipe, nheads=4, seqlen_q=64, seqlen_k=64, sink=True)
    arrays = make_inputs(case).arrays
    scores = 0.125 * np.einsum("bihd,bjhd->bhij", arrays["q"].astype(float), arrays["k"].astype(float))
    largest = scores.max(axis=-1)[0]
    assert (arrays["sink"] > largest.min(axis=-1) - 5).all()
    assert (arrays["sink"] < largest.max(axis=-1) + 5).all()


def test_bias_is_poison_where_no_sequence_has_a_key() -> None:
    fields = length_fields("lengths", (2, 2, 2), KEYS)
    own = make_inputs(case_of(**fields, bias="additive")).arrays["bias"]
    shared = make_inputs(case_of(**fields, bias="additive", bias_broadcast=(True, False))).arrays["bias"]
    assert [int(np.isfinite(row).sum()) for row in own[:, 0, 0]] == list(KEYS)
    assert shared.shape == (1, 1, 2, 7)
    assert np.isfinite(shared).all()


def test_a_hiding_bias_has_its_share_of_minus_infinity_and_whole_rows_of_it() -> None:
    fields = {"bias": "additive", "seqlen_q": 64, "seqlen_k": 64, "nheads": 2}
    plain, hiding = (make_inputs(case_of(**fields, bias_hidden=share)).arrays["bias"] for share in (0.0, 0.3))
    hidden = np.isneginf(hiding)
    assert 0.2 < hidden.mean() < 0.5
    assert hidden.all(axis=-1).any()
    np.testing.assert_array_equal(hiding[~hidden], plain[~hidden])


def test_a_mutated_element_and_a_mutated_gap_change_their_digests() -> None:
    inputs = make_inputs(dataclasses.replace(case_of(), problem=AttentionProblem(layout="sliced")))
    values, buffers = inputs.digest(), inputs.buffer_digest()
    inputs.buffers["k"][0] = 0.0
    assert (inputs.digest(), inputs.buffer_digest() == buffers) == (values, False)
    inputs.arrays["k"][0, 3, 0, 5] += 1.0
    assert inputs.digest() != values


@pytest.mark.parametrize(("dtype", "largest"), [("fp16", 65504.0), ("bf16", 3.3895313892515355e38)])
def test_rounding_saturates_finite_values_and_keeps_the_others(dtype: str, largest: float) -> None:
    rounded = round_to(np.array([1e300, -1e300, np.inf, np.nan, 0.0]), dtype).astype(float)
    np.testing.assert_array_equal(rounded, [largest, -largest, np.inf, np.nan, 0.0])


def test_rounding_is_to_nearest_even() -> None:
    halves = np.array([1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-11, 1 + 3 * 2.0**-11])
    assert round_to(halves[:2], "bf16").astype(float).tolist() == [1.0, 1 + 2.0**-6]
    assert round_to(halves[2:], "fp16").astype(float).tolist() == [1.0, 1 + 2.0**-9]
    assert round_to(halves, "bf16").dtype == ml_dtypes.bfloat16
