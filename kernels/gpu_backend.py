"""A GPU as a Backend: CuPy arrays, kernels compiled by NVRTC, launched on the caller's current stream.

Imports CuPy only when a backend is made, so that machines without it can import the package.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from kernels.backend import Array, Launch, Module
from kernels.cubin import Cubin, compile_cubin

OPT_IN_ABOVE_BYTES = 48 * 1024
"""Dynamic shared memory that a kernel may have without asking (CUDA C++ Programming Guide, "Shared Memory")."""

_SUCCESS, _NOT_READY = 0, 600
"""cudaSuccess and cudaErrorNotReady, what a healthy stream answers."""


class LaunchError(RuntimeError):
    """The driver refused a launch; the message names the entry point and the geometry."""


class GpuBackend:
    """Runs kernels on one NVIDIA GPU.

    Launches are asynchronous: a fault inside a kernel shows at the caller's next synchronisation, or at a later launch.
    What the driver refuses at once (too much shared memory, a bad grid) raises `LaunchError` here.
    """

    def __init__(self, device: int | None = None) -> None:
        """`device` None = CuPy's current device."""
        import cupy

        self._cupy = cupy
        self._device = cupy.cuda.Device(device)
        properties = cupy.cuda.runtime.getDeviceProperties(self._device.id)
        self.name = properties["name"].decode()
        self.arch = f"sm_{self._device.compute_capability}"
        self._functions: dict[tuple[Any, ...], Any] = {}
        self._cubins: dict[tuple[Any, ...], tuple[Cubin, Any]] = {}

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        return self._cupy.empty(shape, dtype)

    def address(self, array: Array) -> int:
        return int(array.data.ptr)

    def to_host(self, array: Array) -> NDArray[Any]:
        host: NDArray[Any] = self._cupy.asnumpy(array)
        return host

    def launch(self, launch: Launch) -> None:
        with self._device:
            function = self._function(launch.module, launch.entry, launch.shared_bytes)
            try:
                function(launch.grid, (launch.block,), (launch.params,), shared_mem=launch.shared_bytes)
            except self._cupy.cuda.driver.CUDADriverError as error:
                raise LaunchError(
                    f"{launch.entry}: {error}; grid {launch.grid}, block {launch.block}, "
                    f"{launch.shared_bytes} bytes of shared memory on {self.name}"
                ) from error
            self._check_stream(launch.entry)

    def cubin(self, module: Module) -> Cubin:
        """The compiled variant for this device, with the registers and spills of its entry points."""
        return self._loaded(module)[0]

    def _loaded(self, module: Module) -> tuple[Cubin, Any]:
        if module.key not in self._cubins:
            cubin = compile_cubin(module, self.arch)
            self._cubins[module.key] = (cubin, self._cupy.RawModule(path=str(cubin.path)))
        return self._cubins[module.key]

    def _function(self, module: Module, entry: str, shared_bytes: int) -> Any:
        key = (module.key, entry)
        if key not in self._functions:
            self._functions[key] = self._loaded(module)[1].get_function(entry)
        function = self._functions[key]
        if shared_bytes > OPT_IN_ABOVE_BYTES and function.max_dynamic_shared_size_bytes < shared_bytes:
            function.max_dynamic_shared_size_bytes = shared_bytes
        return function

    def _check_stream(self, entry: str) -> None:
        """An error of this launch or, asynchronously, of an earlier one; a query would break a graph capture."""
        stream = self._cupy.cuda.get_current_stream()
        if stream.is_capturing():
            return
        runtime = self._cupy.cuda.runtime
        code = runtime.streamQuery(stream.ptr)
        if code not in (_SUCCESS, _NOT_READY):
            raise LaunchError(f"{entry}: {runtime.CUDARuntimeError(code)} pending after the launch on {self.name}")
