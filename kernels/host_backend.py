"""The CPU as a Backend: NumPy arrays, kernels run by `kernels.cpu_backend`, faults kept for the caller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.backend import Array, Launch, Operand
from kernels.cpu_backend import FIFO, Buffer, Build, CpuModule, LaunchReport, MmaModel, Schedule, compile_module


class HostBackend:
    """Runs kernels on this machine's CPU.

    Faults do not raise: a kernel with a race still has numbers to look at. They wait in `reports`.
    """

    name = "cpu"

    def __init__(
        self,
        *,
        build: Build = Build.FAST,
        schedule: Schedule = FIFO,
        mma: MmaModel = MmaModel.HOPPER,
        arch: str = "sm_90",
    ) -> None:
        """Choose how kernels are built and scheduled, and whose shared-memory limit holds (`arch`)."""
        self.arch = arch
        self._build = build
        self._schedule = schedule
        self._mma = mma
        self._modules: dict[tuple[Any, ...], CpuModule] = {}
        self._reports: list[LaunchReport] = []

    def take_reports(self) -> list[LaunchReport]:
        """One report a launch since the last call, in launch order."""
        taken, self._reports = self._reports, []
        return taken

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        return np.empty(shape, dtype)

    def address(self, array: Array) -> int:
        return int(array.ctypes.data)

    def to_host(self, array: Array) -> NDArray[Any]:
        return np.asarray(array)

    def launch(self, launch: Launch) -> None:
        key = launch.module.key
        if key not in self._modules:
            self._modules[key] = compile_module(
                launch.module.source,
                entries=launch.module.entries,
                defines=launch.module.defines,
                build=self._build,
            )
        report = self._modules[key].launch(
            launch.entry,
            grid=launch.grid,
            block=(launch.block, 1, 1),
            shared_bytes=launch.shared_bytes,
            args=[launch.params],
            buffers=buffers_of(launch.operands),
            schedule=self._schedule,
            mma=self._mma,
        )
        self._reports.append(report)


def buffers_of(operands: Sequence[Operand]) -> list[Buffer]:
    """Disjoint memory ranges of the operands; ranges that meet (views of one packed array) are joined.

    A joined range is writable or initialised where one of its parts is: the check is then weaker, never wrong.
    """
    ranges = [_range(operand) for operand in operands if operand.array.size]
    joined: list[Buffer] = []
    for item in sorted(ranges, key=lambda buffer: buffer.address):
        last = joined[-1] if joined else None
        if last is not None and item.address < last.address + last.nbytes:
            end = max(last.address + last.nbytes, item.address + item.nbytes)
            joined[-1] = Buffer(
                name=f"{last.name}+{item.name}",
                address=last.address,
                nbytes=end - last.address,
                writable=last.writable or item.writable,
                initialised=last.initialised or item.initialised,
            )
        else:
            joined.append(item)
    return joined


def _range(operand: Operand) -> Buffer:
    low, high = np.lib.array_utils.byte_bounds(operand.array)
    return Buffer(
        name=operand.name,
        address=low,
        nbytes=high - low,
        writable=operand.writable,
        initialised=operand.initialised,
    )
