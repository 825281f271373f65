"""Arrays cross to torch and back over the same memory."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.verify.candidates.asking import arrays_of, problem_of
from verify.candidates.torch_arrays import heads_first, rows_first, to_array, to_tensor
from verify.errors import UsageError

torch = pytest.importorskip("torch")
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@pytest.mark.parametrize("layout", ["bshd", "bhsd", "sliced", "broadcast", "offset"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_layout_keeps_memory_strides_and_values(dtype: str, layout: str) -> None:
    array = arrays_of(problem_of(dtype, layout=layout))["k"]
    tensor = to_tensor(array)
    assert tensor.dtype == DTYPES[dtype]
    assert tensor.data_ptr() == array.ctypes.data
    assert [stride * array.itemsize for stride in tensor.stride()] == list(array.strides)
    back = to_array(tensor)
    assert back.dtype == array.dtype
    assert back.tobytes() == array.tobytes()


def test_bf16_values_survive_the_round_trip_bit_by_bit() -> None:
    bits = np.arange(2**16, dtype=np.uint32).astype(np.uint16)
    array = bits.view(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(to_array(to_tensor(array)).view(np.uint16), bits)
    np.testing.assert_array_equal(to_tensor(array).float().numpy(), array.astype(np.float32))


def test_heads_first_shows_the_same_element_under_swapped_axes() -> None:
    array = arrays_of(problem_of("bf16", layout="sliced"))["q"]
    tensor = heads_first(array)
    assert tensor.shape == (2, 2, 18, 8)
    assert float(tensor[1, 0, 7, 3]) == float(array[1, 7, 0, 3])
    np.testing.assert_array_equal(rows_first(tensor), array)


def test_write_protected_arrays_are_taken_without_a_warning() -> None:
    array = np.zeros((2, 3), dtype=np.float32)
    array.flags.writeable = False
    assert to_tensor(array).shape == (2, 3)


def test_negative_strides_are_refused() -> None:
    with pytest.raises(UsageError, match=r"strides=\(-4,\): expected non-negative multiples of 4 bytes"):
        to_tensor(np.arange(5, dtype=np.float32)[::-1])
