"""A GPU as a machine for CUDA kernels: buffers are copied with their gaps, so that strides and poison survive."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.gpu_backend import GpuBackend
from verify.candidates.device_streams import DELAY_CYCLES, StreamDevice, arrive, poison_of, read
from verify.dtypes import float_format
from verify.verdict import Status

Array = NDArray[Any]

_BF16 = float_format("bf16").numpy_dtype
_BITS = np.dtype(np.uint16)
"""How bf16 travels: the launcher reads uint16 as the bits of bf16, whatever the array library knows."""


_SPIN = """
extern "C" __global__ void spin(long long cycles) {
    const long long start = clock64();
    while (clock64() - start < cycles) {}
}
"""


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
        host = read(lambda: self._cupy.asnumpy(self._cupy.ascontiguousarray(array)))
        return host.view(_BF16) if host.dtype == _BITS else host

    def streams(self) -> StreamDevice:
        """Streams for a call under a probe."""
        return CupyStreams()

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
        memory = arrive(lambda: self._cupy.asarray(source), poison_of(array.dtype))
        return self._cupy.ndarray(array.shape, dtype, memory.data + offset, array.strides)


class CupyStreams:
    """CuPy's streams for one call under a probe (verify.candidates.device_streams)."""

    def __init__(self) -> None:
        import cupy

        self._cupy = cupy
        self._spin = cupy.RawKernel(_SPIN, "spin")
        # Non-blocking: they do not wait for the legacy default stream.
        self._own, self._side = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))

    def own(self) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = self._own
        return context

    @contextmanager
    def side(self) -> Iterator[None]:
        with self._side:
            yield
        self._side.synchronize()

    def poisoned(self, memory: Any, byte: int) -> Any:
        return self._cupy.full_like(memory, byte)

    def delay(self) -> None:
        self._spin((1,), (1,), (np.int64(DELAY_CYCLES),))

    def copy(self, target: Any, source: Any) -> None:
        self._cupy.copyto(target, source)

    def mark(self) -> Callable[[], bool]:
        event = self._cupy.cuda.Event(disable_timing=True)
        event.record()
        return lambda: bool(event.done)

    def finish(self) -> None:
        self._own.synchronize()

    def finish_all(self) -> None:
        self._cupy.cuda.runtime.deviceSynchronize()
