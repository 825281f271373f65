"""Output buffers that the harness makes: what they hold beforehand is chosen, and guard bands on both sides watched.

A candidate that leaves an element unwritten, adds to what was there, or writes beyond an end is then told from one that
does not. Nothing here knows an array library: memory is bytes that take slices and assignment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from verify.candidate import Array, KernelFaultError
from verify.verdict import Status

PREFILL_DETAIL = "outputs"
"""Key of a route's details that says what the output buffers held before the call."""
PREFILL_BYTES = {"nan": 0xFF, "finite": 0x4B}
"""Every byte of a fresh output: NaN in every float format; 1.3e7 in fp32 and bf16, 14.6 in fp16."""
GUARD_BYTE = 0xA5
GUARD_BYTES = 1024
"""On either side: a tile row of 256 fp32 elements; a multiple of the alignment that vector stores need."""


class OutputBuffers:
    """The outputs of one call, each between two guard bands."""

    def __init__(self, allocate: Callable[[int], Any], to_host: Callable[[Any], Array], prefill: str) -> None:
        """`allocate(nbytes)` gives uint8 memory of the array library, `to_host` a NumPy copy of some of it."""
        self._allocate = allocate
        self._to_host = to_host
        self._byte = PREFILL_BYTES[prefill]
        self._made: list[tuple[str, Any]] = []

    def make(self, name: str, nbytes: int) -> Any:
        """uint8 memory of that size, prefilled."""
        memory = self._allocate(nbytes + 2 * GUARD_BYTES)
        memory[...] = GUARD_BYTE
        inner = memory[GUARD_BYTES : GUARD_BYTES + nbytes]
        inner[...] = self._byte
        self._made.append((name, memory))
        return inner

    def check(self) -> None:
        """Look at the guard bands.

        Raises
        ------
        KernelFaultError
            One was written to.
        """
        for name, memory in self._made:
            sides = {"before": memory[:GUARD_BYTES], "beyond": memory[-GUARD_BYTES:]}
            for side, band in sides.items():
                changed = np.flatnonzero(self._to_host(band) != GUARD_BYTE)
                if changed.size:
                    away = GUARD_BYTES - int(changed[-1]) if side == "before" else int(changed[0]) + 1
                    message = f"memory {side} {name} was written, {away} bytes from it"
                    raise KernelFaultError(Status.OUT_OF_BOUNDS, message)
