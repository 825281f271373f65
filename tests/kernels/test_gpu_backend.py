"""What the GPU backend asks of CuPy, shown on a stand-in: no GPU is needed, none is proved to work."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kernels.backend import Launch, Module
from kernels.cubin import Cubin
from kernels.gpu_backend import OPT_IN_ABOVE_BYTES, GpuBackend, LaunchError


class DriverError(RuntimeError):
    """CUDADriverError of the stand-in."""


class Function:
    """A RawKernel that notes its calls."""

    max_dynamic_shared_size_bytes = OPT_IN_ABOVE_BYTES

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.refuses = False

    def __call__(self, grid: Any, block: Any, args: Any, *, shared_mem: int) -> None:
        if self.refuses:
            raise DriverError("invalid argument")
        self.calls.append((grid, block, args, shared_mem, self.max_dynamic_shared_size_bytes))


class FakeCupy:
    """The few names of CuPy that the backend uses."""

    def __init__(self) -> None:
        self.function, self.status, self.capturing, self.queries = Function(), 0, False, 0
        self.modules: list[str] = []
        device = contextlib.nullcontext()
        device.id, device.compute_capability = 0, "90"  # type: ignore[attr-defined]
        stream = SimpleNamespace(ptr=1, is_capturing=lambda: self.capturing)
        self.cuda = SimpleNamespace(
            Device=lambda _: device,
            driver=SimpleNamespace(CUDADriverError=DriverError),
            get_current_stream=lambda: stream,
            runtime=SimpleNamespace(
                getDeviceProperties=lambda _: {"name": b"Stand-in"},
                streamQuery=self._query,
                CUDARuntimeError=lambda code: RuntimeError(f"error {code}"),
            ),
        )

    def _query(self, _: int) -> int:
        self.queries += 1
        return self.status

    def RawModule(self, *, path: str) -> Any:  # noqa: N802  # CuPy's name
        self.modules.append(path)
        return SimpleNamespace(get_function=lambda _: self.function)


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCupy]:
    fake = FakeCupy()
    monkeypatch.setitem(__import__("sys").modules, "cupy", fake)
    monkeypatch.setattr(
        "kernels.gpu_backend.compile_cubin", lambda module, arch: Cubin(path=Path("image"), arch=arch, usage={})
    )
    return fake


def launch_of(shared_bytes: int) -> Launch:
    return Launch(
        module=Module(source=Path("kernel.cu"), entries=("entry",)),
        entry="entry",
        grid=(3, 2, 1),
        block=64,
        shared_bytes=shared_bytes,
        params=np.zeros((), [("x", "i4")]),
        operands=(),
    )


def test_large_shared_memory_is_opted_into_before_the_launch(cupy: FakeCupy) -> None:
    backend = GpuBackend()
    backend.launch(launch_of(1024))
    backend.launch(launch_of(100_000))
    backend.launch(launch_of(70_000))
    assert [(call[3], call[4]) for call in cupy.function.calls] == [
        (1024, OPT_IN_ABOVE_BYTES),
        (100_000, 100_000),
        (70_000, 100_000),
    ]
    assert cupy.modules == ["image"]


def test_parameters_travel_as_one_struct_by_value(cupy: FakeCupy) -> None:
    GpuBackend().launch(launch_of(0))
    grid, block, args, *_ = cupy.function.calls[0]
    assert (grid, block) == ((3, 2, 1), (64,))
    assert len(args) == 1
    assert args[0].shape == ()


def test_a_refused_launch_names_entry_and_geometry(cupy: FakeCupy) -> None:
    cupy.function.refuses = True
    with pytest.raises(LaunchError, match=r"entry: invalid argument; grid \(3, 2, 1\), block 64, 9 bytes .* Stand-in"):
        GpuBackend().launch(launch_of(9))


@pytest.mark.parametrize(("status", "healthy"), [(0, True), (600, True), (700, False)])
def test_a_pending_error_of_the_stream_is_raised(cupy: FakeCupy, status: int, healthy: bool) -> None:
    cupy.status = status
    with contextlib.nullcontext() if healthy else pytest.raises(LaunchError, match="error 700 pending"):
        GpuBackend().launch(launch_of(0))


def test_a_graph_capture_is_not_disturbed_by_a_query(cupy: FakeCupy) -> None:
    cupy.capturing = True
    GpuBackend().launch(launch_of(0))
    assert cupy.queries == 0


def test_the_architecture_is_that_of_the_device(cupy: FakeCupy) -> None:
    backend = GpuBackend()
    assert (backend.arch, backend.name) == ("sm_90", "Stand-in")
