"""A compiled kernel source and its launches."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from kernels.cpu_backend.build import Image, build_kernel, build_runtime
from kernels.cpu_backend.faults import Fault, FaultKind, LaunchReport, is_internal
from kernels.cpu_backend.image import INTERNAL, LaunchRequest, LoadedImage
from kernels.cpu_backend.memory import Buffer, overwritten_slack
from kernels.cpu_backend.options import FIFO, Build, Checks, MmaModel, Schedule
from kernels.cpu_backend.records import check_record_sizes, shared_limit_bytes

Argument = np.generic | np.ndarray | int
"""A kernel argument: a NumPy scalar, a structured array of shape () for a struct by value, or an address as an int."""

MAX_THREADS = 1024
DEFAULT_TIME_LIMIT_S = 60.0

# The runtime runs one launch at a time: its state and the signal handlers belong to the process.
_launch_lock = threading.Lock()


@functools.cache
def _load_runtime() -> ctypes.CDLL:
    library = ctypes.CDLL(str(build_runtime()))
    library.simt_record_sizes.restype = ctypes.c_uint
    library.simt_image_base.restype = ctypes.c_size_t
    check_record_sizes(library)
    return library


def compile_module(
    source: Path,
    *,
    entries: Sequence[str],
    defines: Mapping[str, str | int] | None = None,
    build: Build = Build.FAST,
) -> CpuModule:
    """Compile a CUDA C++ source for the CPU, or take it from the cache, and load it.

    Parameters
    ----------
    source
        The ``.cu`` file. Its kernels are ``extern "C" __global__ void name(...)``.
    entries
        Names of the kernels to be launched.
    defines
        Compile-time parameters, defined as macros before the source.
    build
        Compiler settings.

    Raises
    ------
    ToolchainError
        Without a compiler or the CUDA headers.
    CompileError
        If the compiler refuses the source.
    ValueError
        If `entries` is empty, or the source uses static ``__shared__``.
    """
    if not entries:
        raise ValueError("entries is empty, expected the names of kernels")
    runtime = _load_runtime()
    return CpuModule(build_kernel(source, entries, defines or {}, build), entries, runtime)


class CpuModule:
    """Kernels of one source, ready to launch."""

    def __init__(self, images: Sequence[Image], entries: Sequence[str], runtime: ctypes.CDLL) -> None:
        self._images = [LoadedImage(image, entries, runtime) for image in images]
        self._runtime = runtime

    @property
    def image_paths(self) -> tuple[Path, ...]:
        """Shared objects of this module in the cache."""
        return tuple(image.path for image in self._images)

    def launch(
        self,
        entry: str,
        *,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        args: Sequence[Argument],
        buffers: Sequence[Buffer],
        schedule: Schedule = FIFO,
        mma: MmaModel = MmaModel.HOPPER,
        time_limit_s: float = DEFAULT_TIME_LIMIT_S,
    ) -> LaunchReport:
        """Run a kernel to its end, or to the first fault that it cannot go on from.

        Parameters
        ----------
        entry
            Name of the kernel.
        grid, block
            Extents (x, y, z).
        shared_bytes
            Dynamic shared memory of a block.
        args
            One value per kernel parameter, of the parameter's size.
        buffers
            Every buffer that the kernel may touch. Only the checked build refuses other addresses.
        schedule
            Order of threads and blocks.
        mma
            Arithmetic of mma.sync.
        time_limit_s
            Processor time after which the launch is ended with a TIMEOUT fault.

        Raises
        ------
        ValueError
            If a geometry, a size or an argument is not what the kernel takes.
        """
        self._check_geometry(entry, grid, block, shared_bytes)
        packed = self._pack(entry, args)
        request = LaunchRequest(entry, grid, block, shared_bytes, packed, tuple(buffers), schedule, mma, time_limit_s)
        faults: list[Fault] = []
        accesses = 0
        with _launch_lock:
            for image in self._images:
                report = _run(image, request)
                faults += report.faults
                accesses += report.checked_accesses
                if any(fault.kind is FaultKind.TIMEOUT for fault in faults):
                    break
        located = {fault.buffer for fault in faults if fault.kind is FaultKind.OUT_OF_BOUNDS}
        slack = [fault for fault in _slack_faults(buffers) if fault.buffer not in located]
        return LaunchReport((*faults, *slack), accesses)

    def _check_geometry(
        self, entry: str, grid: tuple[int, int, int], block: tuple[int, int, int], shared_bytes: int
    ) -> None:
        known = self._images[0].parameter_sizes
        if entry not in known:
            raise ValueError(f"entry={entry!r} was not compiled, expected one of {sorted(known)}")
        for name, extents in (("grid", grid), ("block", block)):
            if len(extents) != 3 or min(extents) < 1:
                raise ValueError(f"{name}={extents!r}, expected three positive extents")
        if block[0] * block[1] * block[2] > MAX_THREADS:
            raise ValueError(f"block={block!r} has {block[0] * block[1] * block[2]} threads, expected 1..{MAX_THREADS}")
        limit = shared_limit_bytes(self._runtime)
        if not 0 <= shared_bytes <= limit:
            raise ValueError(f"shared_bytes={shared_bytes}, expected 0..{limit}")

    def _pack(self, entry: str, args: Sequence[Argument]) -> tuple[bytes, ...]:
        sizes = self._images[0].parameter_sizes[entry]
        if len(args) != len(sizes):
            raise ValueError(f"args of {entry} has {len(args)} values, expected {len(sizes)}")
        packed = []
        for index, (value, size) in enumerate(zip(args, sizes, strict=True)):
            if isinstance(value, np.ndarray) and value.shape != ():
                raise ValueError(f"args[{index}] of {entry} is an array of shape {value.shape}, expected shape ()")
            data = value.to_bytes(8, "little") if isinstance(value, int) else value.tobytes()
            if len(data) != size:
                raise ValueError(f"args[{index}] of {entry} has {len(data)} bytes, expected {size}")
            packed.append(data)
        return tuple(packed)


def _run(image: LoadedImage, request: LaunchRequest) -> LaunchReport:
    if image.checks is not Checks.LOCALS:
        return image.run(request)
    # A rehearsal: everything but uninitialised variables is reported better by the image that runs after it.
    with _restored(request.buffers):
        report = image.run(request)
    kinds = (FaultKind.UNINITIALISED, FaultKind.TIMEOUT)
    compiler_found = [
        Fault(FaultKind.UNINITIALISED, message, file, line)
        for file, line, message in image.uninitialised
        if not is_internal(file, INTERNAL)
    ]
    return LaunchReport((*compiler_found, *(fault for fault in report.faults if fault.kind in kinds)), 0)


def _slack_faults(buffers: Sequence[Buffer]) -> list[Fault]:
    """Writes between the end of a guarded array and the end of its last 16 bytes, or before its start in its page."""
    offsets = {buffer.name: overwritten_slack(buffer) for buffer in buffers}
    message = "the slack beside the buffer was overwritten; the checked build says where"
    return [
        Fault(FaultKind.OUT_OF_BOUNDS, message, None, None, buffer=name, offset=offset)
        for name, offset in offsets.items()
        if offset is not None
    ]


@contextlib.contextmanager
def _restored(buffers: Sequence[Buffer]) -> Iterator[None]:
    """Put the contents of writable buffers back afterwards."""
    saved = [(item.address, ctypes.string_at(item.address, item.nbytes)) for item in buffers if item.writable]
    try:
        yield
    finally:
        for address, data in saved:
            ctypes.memmove(address, data, len(data))
