"""A user's CUDA source as a candidate: on a GPU where the run asks for one, else on the CPU backend.

Inputs are copied to contiguous buffers and outputs start as NaN; the launches are those of the description.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from kernels.backend import Module
from kernels.cpu_backend import Buffer, Build, cache_dir, compile_module, guarded_array
from verify.candidate import Array, Call, KernelFaultError, RefusedError, Reply, Route, output_shapes
from verify.candidates.cuda import DEVICE_VARIABLE, fault_status
from verify.candidates.device_streams import StreamDevice, arrive, poison_of, probing, read, run_probed
from verify.candidates.output_buffers import PREFILL_BYTES, PREFILL_DETAIL
from verify.dtypes import BF16, float_format
from verify.registration import CudaSource, Launch
from verify.registration.cuda_source import FLOATS, INPUTS, evaluate, read_description, size_names
from verify.verdict import Status

_BITS = np.dtype(np.uint16)
"""How bf16 travels on the device."""


class _Device(Protocol):
    """Where the launches of one call run."""

    def put(self, name: str, array: Array, *, writable: bool) -> None:
        """A buffer with this content; NaN counts as not yet written where it is writable."""

    def launch(self, module: Module, launch: Launch, names: Mapping[str, int], floats: Mapping[str, float]) -> None:
        """Run one launch."""

    def get(self, name: str) -> Array:
        """Content of a buffer."""


class CudaSourceCandidate:
    """The launches of a description as a candidate."""

    def __init__(self, name: str, described: CudaSource) -> None:
        self.name = name
        self.contract = described.contract()
        self._described = described

    def unavailable(self) -> str | None:
        """The missing compiler, headers or GPU, or None."""
        if _on_gpu():
            from verify.candidates.cuda_gpu import unavailable

            return unavailable()
        from verify.candidates.cuda_host import unavailable as host_unavailable

        return host_unavailable()

    def sources(self) -> tuple[Path, ...]:
        """The CUDA source."""
        return (_source_path(self._described),)

    def run(self, call: Call) -> Reply:
        """Forward launches, and the backward ones where gradients are asked for."""
        described = self._described
        reason = self.contract.capabilities.refusal(call.problem)
        if reason is None and call.backward and not described.backward:
            reason = "no backward is described"
        if reason is not None:
            raise RefusedError(reason)
        streams: StreamDevice | None = None
        if call.probe_order and _on_gpu():
            from verify.candidates.cuda_gpu import CupyStreams

            streams = CupyStreams()
        return run_probed(call, streams, lambda: self._run(call))

    def _run(self, call: Call) -> Reply:
        described = self._described
        names = size_names(call.problem)
        device: _Device = _Gpu() if _on_gpu() else _Cpu(described.checked)
        for name in INPUTS:
            if name in call.arrays:
                device.put(name, np.ascontiguousarray(call.arrays[name]), writable=False)
        owed = [name for name in described.outputs if call.backward or name in ("out", "lse")]
        shapes = output_shapes(call.problem, call.arrays)
        for name in owed:
            if name in shapes:
                device.put(name, self._blank(name, shapes[name], call), writable=True)
        floats = {name: float(getattr(call.problem, name)) for name in FLOATS}
        module = _module(described, names)
        for launches in (described.forward, described.backward if call.backward else ()):
            for workspace, size in described.workspaces.items():
                device.put(workspace, np.zeros(evaluate(size, names), np.float32), writable=True)
            for launch in launches:
                device.launch(module, launch, names, floats)
        outputs = {name: device.get(name) for name in owed if name in shapes}
        details = {"device": "gpu" if _on_gpu() else "cpu", PREFILL_DETAIL: call.prefill}
        return Reply(outputs=outputs, route=Route(backend=self.name, details=details))

    def _blank(self, name: str, shape: tuple[int, ...], call: Call) -> Array:
        dtype = call.problem.dtype
        arithmetic = self.contract.arithmetic[dtype]
        by_name = {"lse": arithmetic.lse_dtype, "out": arithmetic.out_dtype, "dsink": "fp32"}
        kind = float_format(by_name.get(name, arithmetic.grad_dtype) or dtype).numpy_dtype
        memory = np.full(math.prod(shape) * kind.itemsize, PREFILL_BYTES[call.prefill], np.uint8)
        return memory.view(kind).reshape(shape)


class _Cpu:
    """The CPU backend: buffers end at an inaccessible page."""

    def __init__(self, checked: bool) -> None:
        self._build = Build.CHECKED if checked else Build.FAST
        self._held: dict[str, tuple[Array, Buffer]] = {}

    def put(self, name: str, array: Array, *, writable: bool) -> None:
        unwritten = writable and array.size > 0 and bool(np.isnan(array).all())
        fill = None if unwritten else array
        self._held[name] = guarded_array(array.shape, array.dtype, name=name, fill=fill, writable=writable)

    def launch(self, module: Module, launch: Launch, names: Mapping[str, int], floats: Mapping[str, float]) -> None:
        compiled = compile_module(module.source, entries=module.entries, defines=module.defines, build=self._build)
        grid, block = (_extents(sizes, names) for sizes in (launch.grid, launch.block))
        if 0 in grid:
            return
        report = compiled.launch(
            launch.entry,
            grid=grid,
            block=block,
            shared_bytes=evaluate(launch.shared_bytes, names),
            args=[self._argument(name, names, floats) for name in launch.args],
            buffers=[buffer for _, buffer in self._held.values() if buffer.nbytes],
        )
        for fault in report.faults:
            raise KernelFaultError(fault_status(fault.kind.name), str(fault))

    def get(self, name: str) -> Array:
        return np.array(self._held[name][0])

    def _argument(self, name: str, names: Mapping[str, int], floats: Mapping[str, float]) -> Any:
        if name in floats:
            return np.float32(floats[name])
        if name in names:
            return np.int32(names[name])
        return self._held[name][1].address if name in self._held else 0


class _Gpu:
    """The current CUDA device, by CuPy."""

    def __init__(self) -> None:
        import cupy

        from kernels.gpu_backend import GpuBackend

        self._cupy = cupy
        self._backend = GpuBackend()
        self._held: dict[str, tuple[Any, np.dtype[Any]]] = {}

    def put(self, name: str, array: Array, *, writable: bool) -> None:
        bits = array.view(_BITS) if array.dtype == BF16.numpy_dtype else array
        upload = partial(self._cupy.asarray, bits)
        self._held[name] = (arrive(upload, None if writable else poison_of(array.dtype)), array.dtype)

    def launch(self, module: Module, launch: Launch, names: Mapping[str, int], floats: Mapping[str, float]) -> None:
        grid, block = (_extents(sizes, names) for sizes in (launch.grid, launch.block))
        if 0 in grid:
            return
        shared = evaluate(launch.shared_bytes, names)
        function = self._cupy.RawModule(path=str(self._backend.cubin(module).path)).get_function(launch.entry)
        if shared > 48 * 1024:  # more than that only on request (CUDA C++ Programming Guide, "Shared Memory")
            function.max_dynamic_shared_size_bytes = shared
        function(grid, block, tuple(self._argument(name, names, floats) for name in launch.args), shared_mem=shared)
        if probing():
            return
        try:
            self._cupy.cuda.get_current_stream().synchronize()
        except self._cupy.cuda.runtime.CUDARuntimeError as error:
            raise KernelFaultError(Status.LAUNCH_ERROR, f"{launch.entry}: {error}") from error

    def get(self, name: str) -> Array:
        held, dtype = self._held[name]
        return read(lambda: self._cupy.asnumpy(held)).view(dtype)

    def _argument(self, name: str, names: Mapping[str, int], floats: Mapping[str, float]) -> Any:
        if name in floats:
            return np.float32(floats[name])
        if name in names:
            return np.int32(names[name])
        return self._held[name][0] if name in self._held else np.uint64(0)


def build(path: str) -> CudaSourceCandidate:
    """The candidate that a TOML file describes."""
    return CudaSourceCandidate(path, read_description(Path(path)))


def _on_gpu() -> bool:
    return os.environ.get(DEVICE_VARIABLE) == "gpu"


def _extents(sizes: tuple[int | str, ...], names: Mapping[str, int]) -> tuple[int, int, int]:
    x, y, z = (*(evaluate(size, names) for size in sizes), 1, 1)[:3]
    return x, y, z


def _module(described: CudaSource, names: Mapping[str, int]) -> Module:
    entries = tuple(dict.fromkeys(launch.entry for launch in (*described.forward, *described.backward)))
    defines = {name: evaluate(size, names) for name, size in described.defines.items()}
    return Module(source=_source_path(described), entries=entries, defines=defines)


def _source_path(described: CudaSource) -> Path:
    """The source's file; text is kept in the cache folder under the hash of its content."""
    if isinstance(described.source, Path):
        return described.source
    text = described.source
    if "\n" not in text and text.endswith((".cu", ".cuh")):
        return Path(text)
    path = cache_dir() / f"user-{hashlib.sha256(text.encode()).hexdigest()[:16]}.cu"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.{os.getpid()}")
        partial.write_text(text)
        partial.replace(path)
    return path
