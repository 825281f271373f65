"""A kernel backend whose fresh memory is prefilled and lies between guard bands. Launches nothing by itself."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kernels.backend import Backend, Launch
from verify.candidate import Array
from verify.candidates.output_buffers import OutputBuffers


class GuardedBackend:
    """A kernel backend whose fresh memory comes from output buffers."""

    def __init__(self, backend: Backend, prefill: str) -> None:
        self._backend = backend
        self.name, self.arch = backend.name, backend.arch
        bytes_of = np.dtype(np.uint8)
        self.buffers = OutputBuffers(lambda nbytes: backend.empty((nbytes,), bytes_of), backend.to_host, prefill)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Prefilled, contiguous memory."""
        kind = np.dtype(dtype)
        memory = self.buffers.make(f"an output of shape {shape}", math.prod(shape) * kind.itemsize)
        return memory.view(kind).reshape(shape)

    def address(self, array: Any) -> int:
        return self._backend.address(array)

    def to_host(self, array: Any) -> Array:
        return self._backend.to_host(array)

    def launch(self, launch: Launch) -> None:
        self._backend.launch(launch)
