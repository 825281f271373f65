"""A shared object in this process: calls the runtime's launch and turns its records into faults."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Sequence
from pathlib import Path

from kernels.cpu_backend.build import Image
from kernels.cpu_backend.faults import SHARED_MEMORY, Fault, FaultKind, LaunchReport, is_internal, source_line
from kernels.cpu_backend.memory import Buffer
from kernels.cpu_backend.options import MmaModel, Schedule
from kernels.cpu_backend.records import BufferRecord, FaultRecord, Index3, LaunchRecord, SiteRecord, max_faults
from kernels.cpu_backend.sources import DEVICE_DIR, PTX_HEADER
from kernels.cpu_backend.toolchain import cuda_include_dir

INTERNAL = (DEVICE_DIR, PTX_HEADER)
"""Files whose lines are never the place of a fault: the caller's line is."""


@dataclasses.dataclass(frozen=True, slots=True)
class LaunchRequest:
    """A launch whose parts have been checked; fields as in `CpuModule.launch`."""

    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    args: tuple[bytes, ...]
    buffers: tuple[Buffer, ...]
    schedule: Schedule
    mma: MmaModel
    time_limit_s: float


class LoadedImage:
    """An image and its entry points."""

    def __init__(self, image: Image, entries: Sequence[str], runtime: ctypes.CDLL) -> None:
        self.path: Path = image.path
        self.checks = image.checks
        self.uninitialised = image.uninitialised
        self._runtime = runtime
        self._library = ctypes.CDLL(str(image.path))
        self.parameter_sizes = {entry: self._read_sizes(entry) for entry in entries}

    def _read_sizes(self, entry: str) -> tuple[int, ...]:
        function = getattr(self._library, f"simt_sizes_{entry}")
        function.restype = ctypes.POINTER(ctypes.c_uint)
        count = ctypes.c_uint()
        sizes = function(ctypes.byref(count))
        return tuple(sizes[: count.value])

    def run(self, request: LaunchRequest) -> LaunchReport:
        """Launch, and return the faults in the order met."""
        values = [ctypes.create_string_buffer(data, len(data)) for data in request.args]
        pointers = (ctypes.c_void_p * max(len(values), 1))(*map(ctypes.addressof, values))
        records = (BufferRecord * max(len(request.buffers), 1))(
            *[BufferRecord(item.address, item.nbytes, item.writable, item.initialised) for item in request.buffers]
        )
        faults = (FaultRecord * max_faults(self._runtime))()
        launch = LaunchRecord(
            entry=self._entry_address(request.entry),
            arguments=ctypes.addressof(pointers),
            grid=Index3(*request.grid),
            block=Index3(*request.block),
            shared_bytes=request.shared_bytes,
            policy=request.schedule.policy,
            mma=request.mma,
            checks=self.checks,
            buffer_count=len(request.buffers),
            seed=request.schedule.seed,
            time_limit_s=request.time_limit_s,
            buffers=ctypes.addressof(records),
            faults=ctypes.addressof(faults),
        )
        self._runtime.simt_launch(ctypes.byref(launch))
        return LaunchReport(self._distinct_faults(faults[: launch.fault_count], request), launch.accesses)

    def _entry_address(self, entry: str) -> int:
        return ctypes.cast(getattr(self._library, f"simt_entry_{entry}"), ctypes.c_void_p).value or 0

    def _distinct_faults(self, records: Sequence[FaultRecord], request: LaunchRequest) -> tuple[Fault, ...]:
        """One fault for each kind and pair of lines: a source access can be several instructions."""
        distinct: dict[tuple[object, ...], Fault] = {}
        for record in records:
            fault = self._read_fault(record, request)
            distinct.setdefault((fault.kind, fault.file, fault.line, fault.other_file, fault.other_line), fault)
        return tuple(distinct.values())

    def _read_fault(self, record: FaultRecord, request: LaunchRequest) -> Fault:
        base = int(self._runtime.simt_image_base(ctypes.c_void_p(self._entry_address(request.entry))))
        file, line = self._resolve(record.site, base)
        other_file, other_line = self._resolve(record.other, base)
        names = {-1: SHARED_MEMORY, **{index: item.name for index, item in enumerate(request.buffers)}}
        return Fault(
            kind=FaultKind(record.kind),
            message=record.message.decode(errors="replace"),
            file=file,
            line=line,
            block=record.block.as_tuple(),
            thread=record.thread.as_tuple(),
            buffer=names.get(record.buffer),
            offset=record.offset if record.buffer in names else None,
            other_file=other_file,
            other_line=other_line,
        )

    def _resolve(self, site: SiteRecord, base: int) -> tuple[str, int] | tuple[None, None]:
        internal = (*INTERNAL, cuda_include_dir(), self.path.parent)  # the last holds generated code
        file = site.file.decode() if site.file else None
        if file is not None and not is_internal(file, internal):
            return file, site.line
        return (source_line(self.path, site.pc - base, internal) if site.pc else None) or (None, None)
