"""Views keep values, strides, alignment, sharing and the bytes around them; a changed byte is found and attributed."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from verify.candidate import Array
from verify.errors import UsageError
from verify.worker.shared_arrays import ALIGNMENT, Arena, changed_inputs, layout_inputs, view_input, write_inputs


def sent(arrays: dict[str, Array]) -> tuple[Any, Arena, dict[str, Array]]:
    layout, arena = layout_inputs(arrays), Arena(None)
    write_inputs(layout, arena)
    return layout, arena, {spec.name: view_input(spec, arena) for spec in layout.specs}


def address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def assert_alike(view: Array, array: Array) -> None:
    assert (view.shape, view.strides, view.dtype) == (array.shape, array.strides, array.dtype)
    assert view.tobytes() == array.tobytes()
    if array.size:
        assert (address(view) - address(array)) % ALIGNMENT == 0


@st.composite
def strided_views(draw: st.DrawFn) -> Array:
    dtype = draw(st.sampled_from([np.float32, np.float16, ml_dtypes.bfloat16, np.bool_, np.int32]))
    shape = draw(st.lists(st.integers(0, 5), min_size=1, max_size=4))
    base = np.arange(np.prod(shape)).astype(dtype).reshape(shape)
    steps = [slice(draw(st.none() | st.integers(0, 2)), None, draw(st.sampled_from([1, 2, -1]))) for _ in shape]
    view = base[tuple(steps)].transpose(draw(st.permutations(range(len(shape)))))
    return np.broadcast_to(view, (2, *view.shape)) if draw(st.booleans()) else view


@given(st.lists(strided_views(), min_size=1, max_size=4))
def test_any_view_arrives_as_it_was(views: list[Array]) -> None:
    arrays = {f"a{place}": view for place, view in enumerate(views)}
    layout, arena, received = sent(arrays)
    for name, array in arrays.items():
        assert_alike(received[name], array)
    assert changed_inputs(layout, arrays, arena) == ((), ())


def test_unaligned_base_stays_unaligned() -> None:
    raw = np.arange(103, dtype=np.uint8)
    arrays = {"q": raw[3:].view(np.float32)}
    _, _, received = sent(arrays)
    assert_alike(received["q"], arrays["q"])
    assert not received["q"].flags.aligned


def test_packed_views_share_one_copy_of_their_base() -> None:
    packed = np.arange(2 * 4 * 3 * 8, dtype=np.float32).reshape(2, 4, 3, 8)
    arrays = {name: packed[:, :, place] for place, name in enumerate("qkv")}
    layout, _, received = sent(arrays)
    assert [region.nbytes for region in layout.regions] == [packed.nbytes]
    assert address(received["k"]) - address(received["q"]) == address(arrays["k"]) - address(arrays["q"])


@pytest.mark.parametrize("strides", [(32, 4), (0, 4), (-32, 4)])
def test_bytes_around_a_view_travel_with_it(strides: tuple[int, int]) -> None:
    base = np.full(64, 7.0, np.float32)
    arrays = {"q": as_strided(base[24:], (3, 4), strides)}
    layout, arena, _ = sent(arrays)
    assert layout.regions[0].nbytes == base.nbytes
    start = layout.regions[0].offset
    assert arena.buffer[start : start + base.nbytes] == base.tobytes()


def test_overwritten_element_and_overwritten_gap_are_told_apart() -> None:
    rows, slack = np.ones((4, 8), np.float32), np.ones((4, 8), np.float32)
    arrays = {"q": rows[:, :6], "k": slack[:, :6], "v": np.ones(5, np.float32)}
    layout, arena, received = sent(arrays)
    received["q"][3, 5] = np.nan
    as_strided(received["k"], (4, 8), (32, 4))[2, 7] = 0.0
    assert changed_inputs(layout, arrays, arena) == (("q",), ("k",))


def test_change_of_sign_of_zero_and_of_nan_payload_is_a_change() -> None:
    arrays = {"q": np.zeros(4, np.float32), "k": np.full(4, np.nan, np.float32)}
    layout, arena, received = sent(arrays)
    received["q"][1] = -0.0
    received["k"].view(np.uint32)[2] += 1
    assert sorted(changed_inputs(layout, arrays, arena)[0]) == ["k", "q"]


def test_read_only_inputs_stay_read_only() -> None:
    array = np.zeros(4)
    array.flags.writeable = False
    _, _, received = sent({"q": array})
    assert not received["q"].flags.writeable


@pytest.mark.parametrize(
    "array", [np.array([object()]), np.zeros(2, ">f4"), np.array(["x"])], ids=["object", "swapped", "str"]
)
def test_array_without_plain_numbers_is_refused(array: Array) -> None:
    with pytest.raises(UsageError, match=r"arrays\['q'\]\.dtype"):
        layout_inputs({"q": array})
