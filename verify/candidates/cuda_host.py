"""The CPU as a machine for CUDA kernels: arrays stay where they are, faults come from the CPU backend's reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.cpu_backend import FIFO, REVERSED, Build, ToolchainError, random
from kernels.cpu_backend.toolchain import cuda_include_dir, find_compiler
from kernels.host_backend import HostBackend
from verify.candidates.cuda import fault_status
from verify.verdict import Status

Array = NDArray[Any]


def unavailable() -> str | None:
    """The missing compiler or headers, in one line."""
    try:
        find_compiler()
        cuda_include_dir()
    except ToolchainError as error:
        return str(error)
    return None


class HostMachine:
    """Runs kernels by the CPU backend."""

    def __init__(self, variant: str = "") -> None:
        builds = {"checked": Build.CHECKED, "nofma": Build.NOFMA}
        schedule = REVERSED if variant == "reversed" else FIFO
        if variant.startswith("random"):
            schedule = random(int(variant.removeprefix("random") or 0))
        self._build = builds.get(variant, Build.FAST)
        self._schedule = schedule
        self.backend = HostBackend(build=self._build, schedule=schedule)

    def place(self, arrays: Mapping[str, Array]) -> dict[str, Any]:
        """The arrays themselves."""
        return dict(arrays)

    def fetch(self, array: Any) -> Array:
        """The output itself."""
        return np.asarray(array)

    def faults(self) -> Sequence[tuple[Status, str]]:
        """Faults of all launches since the last call, in launch order."""
        reports = self.backend.take_reports()
        return [(fault_status(fault.kind.name), str(fault)) for report in reports for fault in report.faults]

    def details(self) -> dict[str, str]:
        """Build and schedule."""
        return {"device": "cpu", "build": self._build.name.lower(), "schedule": self._schedule.policy.name.lower()}

    def streams(self) -> None:
        """None: nothing runs beside the call."""
