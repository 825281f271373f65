"""Every layout gives the same values through the strides that it promises, in gaps that hold poison."""

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from numpy.typing import NDArray

from verify.case import Case, Recipe
from verify.errors import UsageError
from verify.inputs import Inputs, lay_out, make_inputs
from verify.layouts import INTEGER_POISON, POISONS, buffer_sizes, place, poison_value, view
from verify.problem import EVERY_LAYOUT, AttentionProblem
from verify.strategies import cases

SHAPE: dict[str, Any] = {"batch": 2, "seqlen_q": 5, "seqlen_k": 5, "nheads": 3, "nheads_kv": 3, "dtype": "fp16"}
NORMAL = Recipe.of("normal")
# Strides in elements of q (2, 5, 3, 64), written out by hand from the definition of each layout.
Q_STRIDES = {
    "bshd": (960, 192, 64, 1),
    "bhsd": (960, 64, 320, 1),
    "packed_qkv": (2880, 576, 64, 1),
    "sliced": (8 * 4 * 72, 4 * 72, 72, 1),
    "broadcast": (960, 192, 64, 1),
    "offset": (960, 192, 64, 1),
    "strided": (1920, 384, 128, 2),
}


def made(layout: str, **fields: Any) -> Inputs:
    problem = AttentionProblem(**{**SHAPE, "layout": layout, **fields})
    return make_inputs(Case(problem=problem, recipe=NORMAL, seed=3))


def gap_mask(inputs: Inputs, buffer: str) -> NDArray[np.bool_]:
    """True where no array of the buffer has an element."""
    used = np.zeros(inputs.buffers[buffer].size, dtype=bool)
    for placement in inputs.placements.values():
        if placement.buffer == buffer:
            view(used, placement)[...] = True
    return ~used


@pytest.mark.parametrize("layout", EVERY_LAYOUT)
def test_q_has_the_strides_of_its_layout(layout: str) -> None:
    q = made(layout).arrays["q"]
    assert tuple(step // q.itemsize for step in q.strides) == Q_STRIDES[layout]


def test_broadcast_shares_the_keys_of_one_sequence() -> None:
    inputs = made("broadcast")
    for name in ("k", "v"):
        assert inputs.arrays[name].strides[0] == 0
        np.testing.assert_array_equal(inputs.arrays[name][1], inputs.arrays[name][0])


def test_packed_qkv_interleaves_three_operands_of_a_row() -> None:
    inputs = made("packed_qkv")
    rows = inputs.buffers["qkv"][64:-64].reshape(2, 5, 3, 3, 64)
    for slot, name in enumerate("qkv"):
        np.testing.assert_array_equal(rows[:, :, slot], inputs.arrays[name])


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_offset_breaks_16_byte_alignment_and_the_others_keep_it(dtype: str) -> None:
    assert made("offset", dtype=dtype).arrays["q"].ctypes.data % 16 != 0
    for layout in ("bshd", "bhsd", "sliced", "broadcast"):
        assert made(layout, dtype=dtype).arrays["k"].ctypes.data % 128 == 0


def test_sliced_operands_do_not_share_strides() -> None:
    arrays = made("sliced").arrays
    assert len({arrays[name].strides for name in ("q", "k", "v", "dout")}) == 4


@pytest.mark.parametrize("layout", [layout for layout in EVERY_LAYOUT if layout != "broadcast"])
def test_values_do_not_depend_on_the_layout(layout: str) -> None:
    assert made(layout).digest() == made("bshd").digest()


def test_broadcast_keeps_the_values_of_the_first_sequence() -> None:
    plain, shared = made("bshd").arrays, made("broadcast").arrays
    np.testing.assert_array_equal(shared["q"], plain["q"])
    np.testing.assert_array_equal(shared["k"][1], plain["k"][0])


@given(case=cases())
def test_gaps_hold_poison_and_nothing_else(case: Case) -> None:
    inputs = make_inputs(case)
    for name, buffer in inputs.buffers.items():
        gaps = buffer[gap_mask(inputs, name)]
        assert len(gaps) >= 128
        expected = poison_value(buffer.dtype, "nan")
        np.testing.assert_array_equal(gaps.astype(float), np.full(len(gaps), float(expected)))


@given(case=cases())
def test_placements_rebuild_the_arrays_over_a_copy_of_the_buffers(case: Case) -> None:
    inputs = make_inputs(case)
    other = inputs.copy()
    assert (other.digest(), other.buffer_digest()) == (inputs.digest(), inputs.buffer_digest())
    for name, at in inputs.placements.items():
        assert view(other.buffers[at.buffer], at).strides == inputs.arrays[name].strides
        assert not np.shares_memory(other.arrays[name], inputs.arrays[name])


@given(case=cases())
def test_no_two_elements_share_memory_outside_broadcast(case: Case) -> None:
    inputs = make_inputs(dataclasses.replace(case, recipe=NORMAL))
    if case.problem.layout != "broadcast":
        total = sum(array.size for array in inputs.arrays.values())
        used = sum(int((~gap_mask(inputs, name)).sum()) for name in inputs.buffers)
        assert used == total


def test_poison_values_by_dtype() -> None:
    assert np.isnan(poison_value(np.dtype(ml_dtypes.bfloat16), "nan"))
    assert poison_value(np.dtype(np.float16), "1e30") == 65504
    assert poison_value(np.dtype(np.float32), "inf") == np.inf
    assert poison_value(np.dtype(np.int32), "zero") == INTEGER_POISON
    assert poison_value(np.dtype(bool), "zero") is True


@pytest.mark.parametrize("poison", POISONS)
def test_poison_changes_gaps_and_not_values(poison: str) -> None:
    case = Case(problem=AttentionProblem(**{**SHAPE, "layout": "sliced"}), recipe=NORMAL, seed=3)
    inputs = make_inputs(case, poison=poison)
    assert inputs.digest() == make_inputs(case).digest()
    assert (inputs.buffer_digest() == make_inputs(case).buffer_digest()) == (poison == "nan")


def test_an_unknown_poison_is_refused() -> None:
    with pytest.raises(UsageError, match="poison='lava'"):
        make_inputs(Case(problem=AttentionProblem(), recipe=NORMAL, seed=0), poison="lava")


def test_broadcast_refuses_keys_that_differ_between_sequences() -> None:
    values = dict(made("bshd").arrays)
    with pytest.raises(UsageError, match="the same k in every sequence"):
        lay_out(AttentionProblem(**{**SHAPE, "layout": "broadcast"}), values)


def test_view_refuses_a_buffer_that_is_too_short() -> None:
    placements = place(AttentionProblem(), {"q": (1, 16, 1, 64)})
    with pytest.raises(UsageError, match="buffer=100"):
        view(np.zeros(100, dtype=np.float32), placements["q"])
    assert buffer_sizes(placements) == {"q": 1024 + 128}
