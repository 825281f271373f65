"""What the launcher asks of a machine that runs kernels: memory, addresses, and one launch.

Implemented by `host_backend.py` (the CPU, NumPy arrays) and `gpu_backend.py` (a GPU, CuPy arrays).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = Any
"""A NumPy array on the CPU, a CuPy array on a GPU: shape, strides, dtype."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """One compiled variant of a source."""

    source: Path
    entries: tuple[str, ...]
    """Every entry point of the source."""
    defines: Mapping[str, str | int] = field(default_factory=dict)
    """Macros: storage type, tile sizes, head-dim bucket."""

    @property
    def key(self) -> tuple[Any, ...]:
        """Identity of the variant, for caches."""
        return (self.source, self.entries, tuple(sorted(self.defines.items())))


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """Memory that a launch may touch."""

    name: str
    array: Array
    writable: bool
    initialised: bool
    """Its content counts as input; false for pure outputs and fresh scratch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One kernel launch."""

    module: Module
    entry: str
    grid: tuple[int, int, int]
    block: int
    """Threads of a block."""
    shared_bytes: int
    params: NDArray[np.void]
    """The parameter struct, an array of shape (), passed by value."""
    operands: tuple[Operand, ...]


class Backend(Protocol):
    """A machine that runs kernels."""

    @property
    def name(self) -> str:
        """For reports: cpu, or the GPU's name."""

    @property
    def arch(self) -> str:
        """sm_XX, whose shared-memory limit applies."""

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Uninitialised, contiguous memory."""

    def address(self, array: Array) -> int:
        """Address of the first element."""

    def to_host(self, array: Array) -> NDArray[Any]:
        """The array as NumPy, copied from the device if need be."""

    def launch(self, launch: Launch) -> None:
        """Run one launch after those already issued.

        Raises
        ------
        RuntimeError
            It could not be compiled or launched.
        """
