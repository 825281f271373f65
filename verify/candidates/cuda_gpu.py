"""A GPU as a machine for CUDA kernels: buffers are copied with their gaps, so that strides and poison survive."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.gpu_backend import GpuBackend
from verify.dtypes import float_format
from verify.verdict import Status

Array = NDArray[Any]

_BF16 = float_format("bf16").numpy_dtype
_BITS = np.dtype(np.uint16)
"""How bf16 travels: the launcher reads uint16 as the bits of bf16, whatever the array library knows."""


def unavailable() -> str | None:
    """Why no GPU can be used, in one line."""
    if find_spec("cupy") is None:
        return "CuPy is not installed: pip install 'attn-verify[cuda13]'"
    import cupy

    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"no GPU: {str(error).splitlines()[0]}"
    return None if count else "no GPU"


class GpuMachine:
    """Runs kernels on the current CUDA device."""

    def __init__(self) -> None:
        import cupy

        self._cupy = cupy
        self.backend = GpuBackend()

    def place(self, arrays: Mapping[str, Array]) -> dict[str, Any]:
        """Strided views on the device over copies of the memory under each array, bytes between elements included.

        Arrays that share memory (one packed qkv buffer) are copied apart; each keeps its own gaps.
        """
        return {name: self._place(array) for name, array in arrays.items()}

    def fetch(self, array: Any) -> Array:
        """An output on the host; the bits of bf16 become bf16."""
        host: Array = self._cupy.asnumpy(self._cupy.ascontiguousarray(array))
        return host.view(_BF16) if host.dtype == _BITS else host

    def faults(self) -> Sequence[tuple[Status, str]]:
        """None: a fault on a GPU raises at the next synchronisation."""
        self._cupy.cuda.get_current_stream().synchronize()
        return ()

    def details(self) -> dict[str, str]:
        """Device and architecture."""
        return {"device": self.backend.name, "arch": self.backend.arch, "cupy": str(self._cupy.__version__)}

    def _place(self, array: Array) -> Any:
        dtype = _BITS if array.dtype == _BF16 else array.dtype
        if array.size == 0:
            return self._cupy.empty(array.shape, dtype)
        low, high = np.lib.array_utils.byte_bounds(array)
        offset = array.__array_interface__["data"][0] - low
        source = np.ctypeslib.as_array((ctypes.c_uint8 * (high - low)).from_address(low))
        memory = self._cupy.asarray(source)
        return self._cupy.ndarray(array.shape, dtype, memory.data + offset, array.strides)
