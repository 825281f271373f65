"""Streams and deferred work: threads that write after the return are found; what no stream reaches is not judged."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from tests.meta.running import HONEST, Faulty, Outputs, case_of, finding_of
from tests.verify.candidates.test_device_streams import FakeDevice
from verify.candidate import Array, Call, Reply, Route
from verify.candidates import load
from verify.candidates.device_streams import NAN_BYTE, arrive, read, run_probed
from verify.verdict import Status

Launch = Callable[[FakeDevice, Callable[[], None]], None]


class OnFakeStreams:
    """The emulation as work on a device of lists; `launch` says on which stream."""

    def __init__(self, launch: Launch) -> None:
        self.name = "fake"
        self._honest = load("numpy_tiled")
        self.contract = self._honest.contract
        self._launch = launch
        self._device = FakeDevice()

    def unavailable(self) -> None:
        """Always available."""

    def run(self, call: Call) -> Reply:
        return run_probed(call, self._device, lambda: self._run(call))

    def _run(self, call: Call) -> Reply:
        floats = {name for name, array in call.arrays.items() if array.dtype.kind not in "iub"}
        placed = {name: self._placed(array, name in floats) for name, array in call.arrays.items()}
        blank = self._honest.run(call).outputs
        held = {name: np.full_like(array, np.nan) for name, array in blank.items()}

        def work() -> None:
            for name, array in self._honest.run(replace(call, arrays=placed)).outputs.items():
                held[name][...] = array

        self._launch(self._device, work)
        outputs = {name: read(array.copy) for name, array in held.items()}
        return Reply(outputs=outputs, route=Route(backend="fake"))

    def _placed(self, array: Array, late: bool) -> Array:
        placed: Array = arrive(array.copy, NAN_BYTE if late else None)
        return placed


def on_the_current_stream(device: FakeDevice, work: Callable[[], None]) -> None:
    device.launch(work)


def on_another_stream(device: FakeDevice, work: Callable[[], None]) -> None:
    work()


def on_a_stream_that_nobody_awaits(device: FakeDevice, work: Callable[[], None]) -> None:
    if device.current == "own":
        device.elsewhere.append(work)
    else:
        work()


def after_waiting_for_the_current_stream(device: FakeDevice, work: Callable[[], None]) -> None:
    device.finish()
    work()


def test_work_on_the_current_stream_passes() -> None:
    finding = finding_of("streams", OnFakeStreams(on_the_current_stream), case_of())
    assert (finding.status, finding.reasons) == (Status.PASS, ())


def test_work_on_another_stream_is_a_race() -> None:
    finding = finding_of("streams", OnFakeStreams(on_another_stream), case_of())
    assert finding.status is Status.RACE
    assert "right on the default stream" in finding.reasons[0]


@pytest.mark.parametrize("check", ["streams", "deferred"])
def test_work_that_outlives_the_stream_is_a_race(check: str) -> None:
    finding = finding_of(check, OnFakeStreams(on_a_stream_that_nobody_awaits), case_of())
    assert finding.status is Status.RACE
    assert "changed after the current stream was done" in finding.reasons[0]


def test_a_candidate_that_waits_passes_with_what_was_not_judged() -> None:
    finding = finding_of("streams", OnFakeStreams(after_waiting_for_the_current_stream), case_of())
    assert finding.status is Status.PASS
    assert "had arrived before" in finding.reasons[0]


def test_a_wrong_answer_is_no_fault_of_the_stream() -> None:
    def fault(honestly: Callable[[Call], Outputs], call: Call) -> Outputs:
        return honestly(call) | {"lse": honestly(call)["lse"] + np.float32(0.1)}

    candidate = OnFakeStreams(on_the_current_stream)
    candidate._honest = Faulty(fault)
    assert finding_of("streams", candidate, case_of()).status is Status.NUMERICAL


@pytest.mark.parametrize("candidate", HONEST)
def test_a_candidate_on_the_cpu_has_no_stream_and_defers_nothing(candidate: str) -> None:
    assert finding_of("streams", candidate, case_of()).status is Status.UNSUPPORTED
    assert finding_of("deferred", candidate, case_of()).status is Status.PASS


@pytest.fixture
def threads() -> Iterator[list[threading.Thread]]:
    started: list[threading.Thread] = []
    yield started
    for thread in started:
        thread.join()


def test_a_thread_that_writes_after_the_return_is_a_race(threads: list[threading.Thread]) -> None:
    def fault(honestly: Callable[[Call], Outputs], call: Call) -> Outputs:
        outputs = honestly(call)
        right, outputs["out"] = outputs["out"], np.full_like(outputs["out"], np.nan)

        def write() -> None:
            time.sleep(0.02)
            outputs["out"][...] = right

        threads.append(threading.Thread(target=write))
        threads[-1].start()
        return outputs

    finding = finding_of("deferred", Faulty(fault), case_of())
    assert finding.status is Status.RACE
    assert finding.reasons[0] == "out changed after the call returned"
