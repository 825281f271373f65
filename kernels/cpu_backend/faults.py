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
    block: tuple[int, int, int]
    """blockIdx (x, y, z)."""
    thread: tuple[int, int, int]
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
        return f"{self.kind.name} at {place}{memory}, block {self.block} thread {self.thread}: {self.message}{other}"


@dataclasses.dataclass(frozen=True, slots=True)
class LaunchReport:
    """Outcome of a launch. With faults, the outputs are not to be trusted: the launch may have ended early."""

    faults: tuple[Fault, ...]

    def __bool__(self) -> bool:
        raise TypeError("a LaunchReport has no truth value: test its faults")


def source_lines(image: Path, addresses: list[int], internal: tuple[Path, ...]) -> list[tuple[str, int] | None]:
    """Source file and line of instruction addresses of a shared object, through addr2line.

    Inlined frames are walked outwards past files in the directories `internal` to the first line of the kernel's own source.
    ``None`` for an address that cannot be placed, or without addr2line.
    """
    tool = shutil.which("addr2line") or shutil.which("llvm-addr2line")
    if tool is None or not addresses:
        return [None] * len(addresses)
    return [_first_own_frame(tool, image, address, internal) for address in addresses]


def _first_own_frame(tool: str, image: Path, address: int, internal: tuple[Path, ...]) -> tuple[str, int] | None:
    done = subprocess.run([tool, "-i", "-e", str(image), hex(address)], capture_output=True, text=True, check=True)
    for frame in done.stdout.splitlines():
        file, _, line = frame.partition(" ")[0].rpartition(":")
        if not line.isdigit() or int(line) == 0:
            continue
        if not any(Path(file).is_relative_to(directory) for directory in internal):
            return file, int(line)
    return None
