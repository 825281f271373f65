"""NumPy views to torch CUDA tensors: the whole memory under the view is copied, gaps and misalignment included."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import Any, TypeVar

import numpy as np

from verify.candidate import Array, Call, Reply
from verify.candidates.device_streams import DELAY_CYCLES, StreamDevice, arrive, poison_of, read, run_probed
from verify.candidates.torch_arrays import to_array
from verify.dtypes import BF16

Adapter = TypeVar("Adapter")

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

    def upload() -> Any:
        memory = torch.empty(slack + high - low, dtype=torch.uint8, device=device)
        # A copy of our own: torch warns about memory that is not writable, and the call's memory may be protected.
        memory[slack:].copy_(torch.from_numpy(source.copy()))
        return memory

    memory = arrive(upload, poison_of(array.dtype))
    start = slack + array.__array_interface__["data"][0] - low
    whole = memory[start % array.itemsize :]
    elements = whole[: whole.numel() // array.itemsize * array.itemsize].view(kind)
    strides = [stride // array.itemsize for stride in array.strides]
    return elements.as_strided(array.shape, strides, elements.storage_offset() + start // array.itemsize)


def to_host(tensor: Any) -> Array:
    """A result on the host, as it is when the current stream is done."""
    return read(lambda: to_array(tensor.detach().cpu().resolve_conj().resolve_neg()))


class TorchStreams:
    """torch's CUDA streams for one call under a probe (verify.candidates.device_streams)."""

    def __init__(self) -> None:
        import torch

        self._cuda = torch.cuda
        # torch makes its streams with cudaStreamNonBlocking: they do not wait for the legacy default stream.
        self._own, self._side = torch.cuda.Stream(), torch.cuda.Stream()

    def own(self) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = self._cuda.stream(self._own)
        return context

    @contextmanager
    def side(self) -> Iterator[None]:
        with self._cuda.stream(self._side):
            yield
        self._side.synchronize()

    def poisoned(self, memory: Any, byte: int) -> Any:
        return memory.new_full(memory.shape, byte)

    def delay(self) -> None:
        self._cuda._sleep(DELAY_CYCLES)

    def copy(self, target: Any, source: Any) -> None:
        target.copy_(source)

    def mark(self) -> Callable[[], bool]:
        event = self._cuda.Event()
        event.record()
        query: Callable[[], bool] = event.query
        return query

    def finish(self) -> None:
        self._own.synchronize()

    def finish_all(self) -> None:
        self._cuda.synchronize()


def torch_streams() -> StreamDevice | None:
    """Streams for a probe, or None where torch has no CUDA device."""
    return TorchStreams() if gpu_missing() is None else None


def on_torch_streams(run: Callable[[Adapter, Call], Reply]) -> Callable[[Adapter, Call], Reply]:
    """A candidate's `run` that takes its inputs by `to_device` and reads its results by `to_host`, under probes too."""

    @wraps(run)
    def probed(self: Adapter, call: Call) -> Reply:
        device = torch_streams() if call.probe_order else None
        return run_probed(call, device, lambda: run(self, call))

    return probed
