"""What a launch reports: faults with their place in the source, the block, the thread and the memory."""

from __future__ import annotations

import dataclasses
import enum
import shutil
import subprocess
from pathlib import Path


class FaultKind(enum.Enum):
    """Kinds of fault; the values are the runtime's numbers."""

    RACE = 0
    OUT_OF_BOUNDS = 1
    UNINITIALISED = 2
    READ_ONLY_WRITE = 3
    IN_FLIGHT_COPY = 4
    MISALIGNED = 5
    BARRIER_DIVERGENCE = 6
    WARP_DIVERGENCE = 7
    DEADLOCK = 8
    TIMEOUT = 9
    ARITHMETIC = 10
    TRAP = 11


SHARED_MEMORY = "shared memory"


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """One fault, reported once per source line and kind."""

    kind: FaultKind
    message: str
    file: str | None
    """Source file, ``None`` if the place is unknown."""
    line: int | None
    block: tuple[int, int, int] | None = None
    """blockIdx (x, y, z); ``None`` if the compiler found the fault."""
    thread: tuple[int, int, int] | None = None
    """threadIdx (x, y, z)."""
    buffer: str | None = None
    """Name of the buffer, ``"shared memory"``, or ``None``."""
    offset: int | None = None
    """Byte offset into the buffer or the block's shared memory."""
    other_file: str | None = None
    other_line: int | None = None
    """The other access of a race, or the other place of a divergence."""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.file else "unknown place"
        other = f" (other: {self.other_file}:{self.other_line})" if self.other_file else ""
        memory = f" in {self.buffer} at byte {self.offset}" if self.buffer else ""
        where = f", block {self.block} thread {self.thread}" if self.block else ""
        return f"{self.kind.name} at {place}{memory}{where}: {self.message}{other}"


@dataclasses.dataclass(frozen=True, slots=True)
class LaunchReport:
    """Outcome of a launch. With faults, the outputs are not to be trusted: the launch may have ended early."""

    faults: tuple[Fault, ...]
    checked_accesses: int
    """Accesses to shared and global memory that were checked; 0 outside of the checked build."""

    def __bool__(self) -> bool:
        raise TypeError("a LaunchReport has no truth value: test its faults")


def source_line(image: Path, address: int, internal: tuple[Path, ...]) -> tuple[str, int] | None:
    """Source file and line of an instruction of a shared object, through addr2line.

    Inlined frames are walked outwards, past the files and directories `internal`, to the first line of the kernel.
    ``None`` if there is none, or no addr2line.
    """
    tool = shutil.which("addr2line") or shutil.which("llvm-addr2line")
    if tool is None:
        return None
    done = subprocess.run([tool, "-i", "-e", str(image), hex(address)], capture_output=True, text=True, check=True)
    for frame in done.stdout.splitlines():
        file, _, line = frame.partition(" ")[0].rpartition(":")
        if not line.isdigit() or int(line) == 0:
            continue
        if not is_internal(file, internal):
            return file, int(line)
    return None


def is_internal(file: str, internal: tuple[Path, ...]) -> bool:
    """Whether `file` is one of the paths `internal` or lies in one of them."""
    return any(Path(file).is_relative_to(path) for path in internal)
