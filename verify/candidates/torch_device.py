"""NumPy views to torch CUDA tensors: the whole memory under the view is copied, gaps and misalignment included."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from verify.candidate import Array
from verify.dtypes import BF16

ALIGNMENT = 256
"""Addresses modulo this many bytes are kept: what vector loads, TMA descriptors and the allocator count in."""


def gpu_missing() -> str | None:
    """Why torch has no CUDA device here, or None."""
    from verify.candidates.torch_arrays import torch_missing

    missing = torch_missing()
    if missing is not None:
        return missing
    import torch

    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    return None if torch.cuda.is_available() else "torch finds no CUDA device"


def to_device(array: Array, device: str = "cuda") -> Any:
    """CUDA tensor with the shape, the strides, the gap bytes and the alignment of `array`."""
    import torch

    bits = np.dtype(np.uint16) if array.dtype == BF16.numpy_dtype else array.dtype
    kind = torch.bfloat16 if bits is not array.dtype else torch.from_numpy(np.empty(0, bits)).dtype
    if array.size == 0:
        return torch.empty(array.shape, dtype=kind, device=device)
    low, high = np.lib.array_utils.byte_bounds(array)
    slack = low % ALIGNMENT
    source = np.ctypeslib.as_array((ctypes.c_uint8 * (high - low)).from_address(low))
    memory = torch.empty(slack + high - low, dtype=torch.uint8, device=device)
    # A copy of our own: torch warns about memory that is not writable, and the call's memory may be protected.
    memory[slack:].copy_(torch.from_numpy(source.copy()))
    start = slack + array.__array_interface__["data"][0] - low
    whole = memory[start % array.itemsize :]
    elements = whole[: whole.numel() // array.itemsize * array.itemsize].view(kind)
    strides = [stride // array.itemsize for stride in array.strides]
    return elements.as_strided(array.shape, strides, elements.storage_offset() + start // array.itemsize)
