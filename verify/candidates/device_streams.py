"""Whether a candidate keeps to the current stream: its inputs arrive there late, its results are read when it is done.

Work on another stream then meets poison instead of inputs, and work that outlives the call shows in results that change
after they were read. The order of the steps is here; the array libraries (torch_device, cuda_gpu) take them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from verify.candidate import Array, Call, KernelFaultError, Reply
from verify.verdict import Status

STREAM_DETAIL = "stream"
"""Key of a route's details that says that the call ran under a probe."""
LATE, EARLY = "inputs arrived late", "inputs arrived before the call returned"
"""Its values. EARLY: the candidate waited for the stream, or took longer than the delay; what it launched after that
moment met inputs that were there."""
DELAY_CYCLES = 80_000_000
"""Clock cycles before each input arrives: 40 ms at 2 GHz; a warm call launches in some milliseconds."""
SETTLE_S = 0.2
"""Wait between the two readings of a result: long against what a thread needs to be scheduled."""
NAN_BYTE = 0xFF
"""Every byte of a poisoned float: NaN in fp16, bf16, fp32 and fp64."""


class StreamDevice(Protocol):
    """The streams and the memory of one array library during one call."""

    def own(self) -> AbstractContextManager[Any]:
        """Makes the stream of the call current; it waits for no other stream."""

    def side(self) -> AbstractContextManager[Any]:
        """Makes a stream for preparations current, and waits for it at the exit."""

    def poisoned(self, memory: Any, byte: int) -> Any:
        """New memory of the same size, each byte that value."""

    def delay(self) -> None:
        """Keeps the current stream busy for DELAY_CYCLES."""

    def copy(self, target: Any, source: Any) -> None:
        """Copies on the current stream."""

    def mark(self) -> Callable[[], bool]:
        """Whether all that the current stream was given so far is done, asked later."""

    def finish(self) -> None:
        """Waits for the stream of the call, and for no other."""

    def finish_all(self) -> None:
        """Waits for everything on the device."""


class StreamProbe:
    """One call whose inputs arrive late on a stream of its own."""

    def __init__(self, device: StreamDevice) -> None:
        self._device = device
        self._held: list[Any] = []
        self._read: list[tuple[Callable[[], Array], Array]] = []
        self._last_arrival: Callable[[], bool] | None = None
        self.arrived = 0
        """Inputs that came late."""
        self.early = False
        """Some result was asked for when all inputs had arrived."""

    def arrive(self, make: Callable[[], Any], poison: int | None) -> Any:
        """Memory with what `make` puts on the device: poison until the stream of the call gets there.

        `poison` None = in place at once: a wrong index would be an access out of bounds, not a wrong number.
        """
        with self._device.side():
            good = make()
            live = good if poison is None else self._device.poisoned(good, poison)
        # Both belong to the side stream; they must outlive the call's.
        self._held += [good, live]
        if poison is not None:
            with self._device.own():
                self._device.delay()
                self._device.copy(live, good)
                self._last_arrival = self._device.mark()
            self.arrived += 1
        return live

    def read(self, fetch: Callable[[], Array]) -> Array:
        """A result as it is when the stream of the call is done."""
        if self._last_arrival is not None:
            self.early |= self._last_arrival()
            self._last_arrival = None
        values = self._fetch(fetch)
        self._read.append((fetch, values.copy()))
        return values

    def changed(self) -> int:
        """Number of results that other streams or threads changed after they were read."""
        self._device.finish_all()
        time.sleep(SETTLE_S)
        self._device.finish_all()
        return sum(self._fetch(fetch).tobytes() != before.tobytes() for fetch, before in self._read)

    def _fetch(self, fetch: Callable[[], Array]) -> Array:
        with self._device.own():
            self._device.finish()
            return fetch()


_active: ContextVar[StreamProbe | None] = ContextVar("stream probe", default=None)


def arrive(make: Callable[[], Any], poison: int | None) -> Any:
    """Device memory made by `make`; under a probe its content arrives late, after that poison (`poison_of`)."""
    probe = _active.get()
    return make() if probe is None else probe.arrive(make, poison)


def read(fetch: Callable[[], Array]) -> Array:
    """A result copied to the host by `fetch`; under a probe when the call's stream is done, and again later."""
    probe = _active.get()
    return fetch() if probe is None else probe.read(fetch)


def probing() -> bool:
    """Whether a probe is on: to wait for the stream inside the call would let the inputs arrive."""
    return _active.get() is not None


def poison_of(dtype: np.dtype[Any]) -> int | None:
    """Byte that poisons an array: NaN for floats, "hidden" for masks, None for indices."""
    if dtype.kind == "b":
        return 0
    return None if dtype.kind in "iu" else NAN_BYTE


def run_probed(call: Call, device: StreamDevice | None, run: Callable[[], Reply]) -> Reply:
    """The reply of `run`, under a probe where the call asks for one and there is a device.

    Raises
    ------
    KernelFaultError
        Results changed after the stream of the call was done.
    """
    if device is None or not call.probe_order:
        return run()
    probe = StreamProbe(device)
    token = _active.set(probe)
    try:
        with device.own():
            reply = run()
    finally:
        _active.reset(token)
    late = probe.changed()
    if late:
        raise KernelFaultError(Status.RACE, f"{late} results changed after the current stream was done")
    if not probe.arrived:
        return reply
    details = {**reply.route.details, STREAM_DETAIL: EARLY if probe.early else LATE}
    return replace(reply, route=replace(reply.route, details=details))


def settled(reply: Reply) -> Reply:
    """The reply, unless threads still write into its arrays.

    Raises
    ------
    KernelFaultError
        Outputs changed after the call returned.
    """
    before = {name: array.tobytes() for name, array in reply.outputs.items()}
    time.sleep(SETTLE_S)
    late = [name for name, array in reply.outputs.items() if array.tobytes() != before[name]]
    if late:
        raise KernelFaultError(Status.RACE, f"{', '.join(late)} changed after the call returned")
    return reply
