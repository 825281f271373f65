"""The order of steps of a probe, shown on a device whose streams are lists: it proves nothing of a real GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from tests.verify.candidates.asking import arrays_of, problem_of
from verify.candidate import Array, Call, KernelFaultError, Reply, Route
from verify.candidates import device_streams
from verify.candidates.device_streams import EARLY, LATE, NAN_BYTE, STREAM_DETAIL, arrive, read, run_probed, settled
from verify.verdict import Status

Work = Callable[[], None]


class FakeDevice:
    """Streams are queues of work that run when they are waited for; the side stream and the legacy one run at once."""

    def __init__(self) -> None:
        self.queue: list[Work] = []
        self.elsewhere: list[Work] = []
        """Work on a stream that the probe does not know."""
        self.current = "legacy"

    @contextmanager
    def own(self) -> Iterator[None]:
        yield from self._on("own")

    @contextmanager
    def side(self) -> Iterator[None]:
        yield from self._on("side")

    def _on(self, stream: str) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    def launch(self, work: Work) -> None:
        """Work on the current stream."""
        if self.current == "own":
            self.queue.append(work)
        else:
            work()

    def poisoned(self, memory: Array, byte: int) -> Array:
        return np.full(memory.nbytes, byte, np.uint8).view(memory.dtype).reshape(memory.shape)

    def delay(self) -> None:
        self.launch(lambda: None)

    def copy(self, target: Array, source: Array) -> None:
        self.launch(lambda: np.copyto(target, source))

    def mark(self) -> Callable[[], bool]:
        return lambda: not self.queue

    def finish(self) -> None:
        while self.queue:
            self.queue.pop(0)()

    def finish_all(self) -> None:
        self.finish()
        while self.elsewhere:
            self.elsewhere.pop(0)()


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_streams, "SETTLE_S", 0.0)


def call_of(*, probe_order: bool = True) -> Call:
    problem = problem_of()
    return Call(problem=problem, arrays=arrays_of(problem), backward=False, probe_order=probe_order)


INPUT = np.arange(6.0, dtype=np.float32)


def answer(device: FakeDevice, launch: Callable[[Work], None], *, poison: int | None = NAN_BYTE) -> Callable[[], Reply]:
    """A candidate that doubles one input by work that `launch` places somewhere."""

    def run() -> Reply:
        x = arrive(INPUT.copy, poison)
        out = np.full_like(x, -1.0)
        launch(lambda: np.multiply(x, 2, out=out))
        return Reply(outputs={"out": read(out.copy)}, route=Route(backend="fake"))

    return run


def test_work_on_the_current_stream_meets_the_inputs() -> None:
    device = FakeDevice()
    reply = run_probed(call_of(), device, answer(device, device.launch))
    np.testing.assert_array_equal(reply.outputs["out"], 2 * INPUT)
    assert reply.route.details == {STREAM_DETAIL: LATE}


def test_work_on_another_stream_meets_poison() -> None:
    device = FakeDevice()
    reply = run_probed(call_of(), device, answer(device, lambda work: work()))
    assert np.isnan(reply.outputs["out"]).all()


def test_work_that_ends_after_the_stream_is_a_race() -> None:
    device = FakeDevice()
    with pytest.raises(KernelFaultError, match="1 results changed") as caught:
        run_probed(call_of(), device, answer(device, device.elsewhere.append))
    assert caught.value.status is Status.RACE


def test_a_candidate_that_waits_for_its_inputs_is_named() -> None:
    device = FakeDevice()

    def waits(work: Work) -> None:
        device.finish()
        work()

    assert run_probed(call_of(), device, answer(device, waits)).route.details == {STREAM_DETAIL: EARLY}


def test_indices_are_in_place_at_once() -> None:
    device = FakeDevice()
    reply = run_probed(call_of(), device, answer(device, lambda work: work(), poison=None))
    np.testing.assert_array_equal(reply.outputs["out"], 2 * INPUT)
    assert STREAM_DETAIL not in reply.route.details


@pytest.mark.parametrize(("asked", "on_gpu"), [(False, True), (True, False)])
def test_without_a_probe_or_a_device_the_call_is_the_usual_one(asked: bool, on_gpu: bool) -> None:
    device = FakeDevice()
    run = answer(device, lambda work: work())
    reply = run_probed(call_of(probe_order=asked), device if on_gpu else None, run)
    np.testing.assert_array_equal(reply.outputs["out"], 2 * INPUT)
    assert not reply.route.details


def test_a_fault_in_the_call_ends_the_probe() -> None:
    def fails() -> Any:
        raise ZeroDivisionError

    device = FakeDevice()
    with pytest.raises(ZeroDivisionError):
        run_probed(call_of(), device, fails)
    assert arrive(lambda: "plain", NAN_BYTE) == "plain"


def test_outputs_that_change_after_the_call_are_a_race(monkeypatch: pytest.MonkeyPatch) -> None:
    out = np.zeros(3)
    reply = Reply(outputs={"out": out}, route=Route(backend="fake"))
    assert settled(reply) is reply
    monkeypatch.setattr(device_streams.time, "sleep", lambda _: out.fill(1.0))
    with pytest.raises(KernelFaultError, match="out changed after the call returned"):
        settled(reply)
