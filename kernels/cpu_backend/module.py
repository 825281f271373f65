"""A compiled kernel source and its launches."""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from kernels.cpu_backend import build as building
from kernels.cpu_backend.faults import SHARED_MEMORY, Fault, FaultKind, LaunchReport, source_lines
from kernels.cpu_backend.memory import Buffer
from kernels.cpu_backend.options import FIFO, Build, MmaModel, Schedule
from kernels.cpu_backend.records import (
    BufferRecord,
    FaultRecord,
    Index3,
    LaunchRecord,
    SiteRecord,
    check_record_sizes,
    max_faults,
    shared_limit_bytes,
)
from kernels.cpu_backend.toolchain import cuda_include_dir

Argument = np.generic | np.ndarray | int
"""A kernel argument: a NumPy scalar, a structured array of shape () for a struct by value, or an address as an int."""

MAX_THREADS = 1024
DEFAULT_TIME_LIMIT_S = 60.0

# The runtime runs one launch at a time: its state and the signal handlers belong to the process.
_launch_lock = threading.Lock()


@functools.cache
def _load_runtime() -> ctypes.CDLL:
    library = ctypes.CDLL(str(building.build_runtime()))
    library.simt_record_sizes.restype = ctypes.c_uint
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
    """
    runtime = _load_runtime()
    image = building.build_kernel(source, entries, defines or {}, build)
    return CpuModule(image, entries, build, runtime)


class CpuModule:
    """Kernels of one source, ready to launch."""

    def __init__(self, image: Path, entries: Sequence[str], build: Build, runtime: ctypes.CDLL) -> None:
        self.image = image
        self.build = build
        self._runtime = runtime
        self._library = ctypes.CDLL(str(image))
        self._parameter_sizes = {entry: self._read_sizes(entry) for entry in entries}

    def _read_sizes(self, entry: str) -> tuple[int, ...]:
        function = getattr(self._library, f"simt_sizes_{entry}")
        function.restype = ctypes.POINTER(ctypes.c_uint)
        count = ctypes.c_uint()
        sizes = function(ctypes.byref(count))
        return tuple(sizes[: count.value])

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
        packed = [self._pack(entry, index, value) for index, value in enumerate(args)]
        pointers = (ctypes.c_void_p * max(len(packed), 1))(*[ctypes.addressof(item) for item in packed])
        records = (BufferRecord * max(len(buffers), 1))(
            *[BufferRecord(item.address, item.nbytes, item.writable, item.initialised) for item in buffers]
        )
        faults = (FaultRecord * max_faults(self._runtime))()
        launch = LaunchRecord(
            entry=ctypes.cast(getattr(self._library, f"simt_entry_{entry}"), ctypes.c_void_p),
            arguments=ctypes.addressof(pointers),
            grid=Index3(*grid),
            block=Index3(*block),
            shared_bytes=shared_bytes,
            policy=schedule.policy,
            mma=mma,
            checked=self.build is Build.CHECKED,
            buffer_count=len(buffers),
            seed=schedule.seed,
            time_limit_s=time_limit_s,
            buffers=ctypes.addressof(records),
            faults=ctypes.addressof(faults),
        )
        with _launch_lock:
            self._runtime.simt_launch(ctypes.byref(launch))
        return LaunchReport(self._read_faults(faults[: launch.fault_count], buffers))

    def _check_geometry(
        self, entry: str, grid: tuple[int, int, int], block: tuple[int, int, int], shared_bytes: int
    ) -> None:
        if entry not in self._parameter_sizes:
            raise ValueError(f"entry={entry!r} was not compiled, expected one of {sorted(self._parameter_sizes)}")
        for name, extents in (("grid", grid), ("block", block)):
            if len(extents) != 3 or min(extents) < 1:
                raise ValueError(f"{name}={extents!r}, expected three positive extents")
        if block[0] * block[1] * block[2] > MAX_THREADS:
            raise ValueError(f"block={block!r} has more than {MAX_THREADS} threads")
        limit = shared_limit_bytes(self._runtime)
        if not 0 <= shared_bytes <= limit:
            raise ValueError(f"shared_bytes={shared_bytes}, expected 0..{limit}")

    def _pack(self, entry: str, index: int, value: Argument) -> ctypes.Array[ctypes.c_char]:
        sizes = self._parameter_sizes[entry]
        if isinstance(value, np.ndarray) and value.shape != ():
            raise ValueError(f"args[{index}] of {entry} is an array of shape {value.shape}, expected shape ()")
        data = value.to_bytes(8, "little") if isinstance(value, int) else value.tobytes()
        if index >= len(sizes) or len(data) != sizes[index]:
            expected = f"{sizes[index]} bytes" if index < len(sizes) else f"only {len(sizes)} arguments"
            raise ValueError(f"args[{index}] of {entry} has {len(data)} bytes, expected {expected}")
        return ctypes.create_string_buffer(data, len(data))

    def _read_faults(self, records: Sequence[FaultRecord], buffers: Sequence[Buffer]) -> tuple[Fault, ...]:
        """One fault for each kind and pair of lines: the compiler can split a source access into several instructions."""
        distinct: dict[tuple[object, ...], Fault] = {}
        for record in records:
            fault = self._read_fault(record, buffers)
            distinct.setdefault((fault.kind, fault.file, fault.line, fault.other_file, fault.other_line), fault)
        return tuple(distinct.values())

    def _read_fault(self, record: FaultRecord, buffers: Sequence[Buffer]) -> Fault:
        place, other = self._resolve(record.site), self._resolve(record.other)
        names = {-1: SHARED_MEMORY, **{index: item.name for index, item in enumerate(buffers)}}
        known = record.buffer in names
        return Fault(
            kind=FaultKind(record.kind),
            message=record.message.decode(errors="replace"),
            file=place[0] if place else None,
            line=place[1] if place else None,
            block=record.block.as_tuple(),
            thread=record.thread.as_tuple(),
            buffer=names.get(record.buffer),
            offset=record.offset if known else None,
            other_file=other[0] if other else None,
            other_line=other[1] if other else None,
        )

    def _resolve(self, site: SiteRecord) -> tuple[str, int] | None:
        if site.file:
            return site.file.decode(), site.line
        if not site.pc:
            return None
        base = self._image_base()
        internal = (building.DEVICE_DIR, cuda_include_dir())
        return source_lines(self.image, [site.pc - base], internal)[0]

    def _image_base(self) -> int:
        self._runtime.simt_image_base.restype = ctypes.c_size_t
        symbol = next(iter(self._parameter_sizes))
        address = ctypes.cast(getattr(self._library, f"simt_entry_{symbol}"), ctypes.c_void_p)
        return int(self._runtime.simt_image_base(address))
