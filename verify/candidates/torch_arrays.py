"""NumPy views to torch CPU tensors and back without a copy: same memory, same strides, bf16 through its bits.

The only place that knows how the two libraries name their dtypes.
"""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from typing import Any

import numpy as np

from verify.candidate import Array
from verify.dtypes import BF16
from verify.errors import UsageError


def torch_missing() -> str | None:
    """Why torch cannot be used here, or None."""
    return None if find_spec("torch") is not None else "torch is not installed (pip install attn-verify[torch])"


def to_tensor(array: Array) -> Any:
    """Tensor over the memory of `array` with the same shape and strides; stride 0 is kept.

    Raises
    ------
    UsageError
        For a negative stride or one that is no multiple of the item size: torch has no such tensors.
    """
    import torch

    for stride in array.strides:
        if stride < 0 or stride % array.itemsize:
            raise UsageError(f"strides={array.strides}: expected non-negative multiples of {array.itemsize} bytes")
    # NumPy has no bf16 of its own, so torch knows the array only by its bits.
    bits = array.view(np.uint16) if array.dtype == BF16.numpy_dtype else array
    with warnings.catch_warnings():
        # The harness may write-protect its inputs; torch has no read-only tensors and says so each time.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        tensor = torch.from_numpy(bits)
    return tensor.view(torch.bfloat16) if bits is not array else tensor


def to_array(tensor: Any) -> Array:
    """Array over the memory of a CPU tensor with the same shape and strides."""
    import torch

    plain = tensor.detach()
    if plain.dtype == torch.bfloat16:
        bits: Array = plain.view(torch.uint16).numpy()
        return bits.view(BF16.numpy_dtype)
    array: Array = plain.numpy()
    return array


def heads_first(array: Array) -> Any:
    """(batch, rows, heads, dim) array as the (batch, heads, rows, dim) tensor that torch expects, same memory."""
    return to_tensor(array).transpose(1, 2)


def rows_first(tensor: Any) -> Array:
    """Inverse of `heads_first`."""
    return to_array(tensor.transpose(1, 2))
