"""The array libraries of users' functions: how a call's NumPy views get there and how results come back.

Strides survive, and so do the bytes between elements; nothing is computed here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np

from verify.candidate import Array
from verify.candidates.device_streams import StreamDevice
from verify.candidates.torch_arrays import to_tensor, torch_missing
from verify.dtypes import float_format

DEVICE_VARIABLE = "ATTN_VERIFY_DEVICE"


class World(Protocol):
    """One array library on one device."""

    def bring(self, arrays: Mapping[str, Array]) -> dict[str, Any]:
        """The call's arrays in the library, strides kept."""

    def allocate(self, nbytes: int) -> Any:
        """uint8 memory of the library."""

    def shaped(self, memory: Any, shape: tuple[int, ...], dtype: str) -> Any:
        """An array over uint8 memory of its size."""

    def swapped(self, array: Any) -> Any:
        """View with axes 1 and 2 exchanged: (batch, seqlen, heads, dim) <-> (batch, heads, seqlen, dim)."""

    def fetch(self, value: Any) -> Any:
        """NumPy array of a result; what is no array of the library passes through, for the worker to name."""

    def facts(self) -> dict[str, str]:
        """Versions and device, for the route."""

    def streams(self) -> StreamDevice | None:
        """GPU streams for a call under a probe; None on the CPU."""


class NumpyWorld:
    """NumPy arrays as they are."""

    def bring(self, arrays: Mapping[str, Array]) -> dict[str, Any]:
        return dict(arrays)

    def allocate(self, nbytes: int) -> Any:
        return np.empty(nbytes, np.uint8)

    def shaped(self, memory: Any, shape: tuple[int, ...], dtype: str) -> Any:
        return memory.view(float_format(dtype).numpy_dtype).reshape(shape)

    def swapped(self, array: Any) -> Any:
        return array.swapaxes(1, 2) if isinstance(array, np.ndarray) and array.ndim == 4 else array

    def fetch(self, value: Any) -> Any:
        return value

    def facts(self) -> dict[str, str]:
        return {"numpy": np.__version__, "device": "cpu"}

    def streams(self) -> None:
        """None: NumPy has no streams."""


class TorchWorld:
    """torch tensors, on the CPU over the call's own memory or on a GPU over a copy of it."""

    def __init__(self, device: str) -> None:
        self.device = device

    def bring(self, arrays: Mapping[str, Array]) -> dict[str, Any]:
        if self.device == "cpu":
            return {name: to_tensor(array) for name, array in arrays.items()}
        from verify.candidates.torch_device import to_device

        return {name: to_device(array, self.device) for name, array in arrays.items()}

    def allocate(self, nbytes: int) -> Any:
        import torch

        return torch.empty(nbytes, dtype=torch.uint8, device=self.device)

    def shaped(self, memory: Any, shape: tuple[int, ...], dtype: str) -> Any:
        import torch

        kinds = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp64": torch.float64}
        return memory.view(kinds.get(dtype, torch.float32)).view(shape)

    def swapped(self, array: Any) -> Any:
        import torch

        return array.transpose(1, 2) if isinstance(array, torch.Tensor) and array.dim() == 4 else array

    def fetch(self, value: Any) -> Any:
        import torch

        if not isinstance(value, torch.Tensor):
            return value
        from verify.candidates.torch_device import to_host

        return to_host(value)

    def facts(self) -> dict[str, str]:
        import torch

        name = "cpu" if self.device == "cpu" else torch.cuda.get_device_name(self.device)
        return {"torch": str(torch.__version__), "device": name}

    def streams(self) -> StreamDevice | None:
        if self.device == "cpu":
            return None
        from verify.candidates.torch_device import torch_streams

        return torch_streams()


class CupyWorld:
    """CuPy arrays on the current GPU; bf16 as the uint16 that holds its bits."""

    def __init__(self) -> None:
        import cupy

        from verify.candidates.cuda_gpu import GpuMachine

        self._cupy = cupy
        self._machine = GpuMachine()

    def bring(self, arrays: Mapping[str, Array]) -> dict[str, Any]:
        return self._machine.place(arrays)

    def allocate(self, nbytes: int) -> Any:
        return self._cupy.empty(nbytes, np.uint8)

    def shaped(self, memory: Any, shape: tuple[int, ...], dtype: str) -> Any:
        kind = np.dtype(np.uint16) if dtype == "bf16" else float_format(dtype).numpy_dtype
        return memory.view(kind).reshape(shape)

    def swapped(self, array: Any) -> Any:
        return array.swapaxes(1, 2) if isinstance(array, self._cupy.ndarray) and array.ndim == 4 else array

    def fetch(self, value: Any) -> Any:
        return self._machine.fetch(value) if isinstance(value, self._cupy.ndarray) else value

    def facts(self) -> dict[str, str]:
        return self._machine.details()

    def streams(self) -> StreamDevice | None:
        return self._machine.streams()


def world_missing(arrays: str) -> str | None:
    """Why arrays of that library cannot be had here, or None."""
    if arrays == "numpy":
        return None
    if arrays == "cupy":
        if find_spec("cupy") is None:
            return "CuPy is not installed (pip install cupy-cuda13x)"
        from verify.candidates.cuda_gpu import unavailable

        return unavailable()
    return torch_missing()


def make_world(arrays: str) -> World:
    """The library on the device of the run (environment variable ATTN_VERIFY_DEVICE)."""
    if arrays == "numpy":
        return NumpyWorld()
    if arrays == "cupy":
        return CupyWorld()
    import torch

    on_gpu = os.environ.get(DEVICE_VARIABLE) == "gpu" and torch.cuda.is_available()
    return TorchWorld("cuda" if on_gpu else "cpu")
