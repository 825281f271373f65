"""The log of a campaign: one line a fact, one O_APPEND write a line, so that a kill at any moment loses at most a line.

All lanes append to the same file; whoever wants to know where the campaign stands reads it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from verify.errors import UsageError
from verify.fuzz.faults import FaultKey
from verify.verdict import Status


class Started(msgspec.Struct, tag="started", frozen=True, kw_only=True):
    """A campaign, or its continuation, begins."""

    candidate: str
    seed: int
    jobs: int
    axes_version: int
    checks: list[str] = []
    max_seqlen: int = 160
    at: str = ""
    """UTC, ISO 8601."""


class Progress(msgspec.Struct, tag="progress", frozen=True, kw_only=True):
    """What one lane has done since its last line, and where it stands."""

    lane: int
    seed: int
    examples: int
    """Cases judged since the last line."""
    seconds: float
    """Since the last line."""
    grid: int
    """Next place in the explicit grid."""
    uniform: int
    """Next number of the uniform stream."""
    rounds: int
    """Next Hypothesis round."""
    worst_ratio: float
    worst_case: str
    new: list[int]
    """Combinations of features first met."""
    counts: dict[str, int]
    """Fault -> failing cases since the last line."""


class Found(msgspec.Struct, tag="found", frozen=True, kw_only=True):
    """A fault, before anything is made smaller."""

    check: str
    status: str
    tensor: str
    pattern: str
    case_id: str
    candidate: str
    source: str
    """regression, earlier, grid, uniform or hypothesis."""
    examples: int
    """Cases that this lane had judged."""
    seconds: float
    """Since this lane began."""
    known: bool = False

    @property
    def key(self) -> FaultKey:
        status = Status(self.status)
        return FaultKey(check=self.check, status=status, tensor=self.tensor, pattern=self.pattern, known=self.known)


class Reduced(msgspec.Struct, tag="reduced", frozen=True, kw_only=True):
    """The smallest case of a fault so far."""

    fault: str
    """Text of the fault's key."""
    case_id: str
    candidate: str
    calls: int
    seconds: float
    complete: bool


class Gone(msgspec.Struct, tag="gone", frozen=True, kw_only=True):
    """An earlier fault whose case passes now."""

    fault: str
    case_id: str


Line = Started | Progress | Found | Reduced | Gone
_DECODER = msgspec.json.Decoder(Line)


def log_path(out: Path, candidate: str) -> Path:
    """File of the campaign of a candidate."""
    return out / slug(candidate) / "campaign.jsonl"


def slug(text: str) -> str:
    """Text as a file name."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-")


class CampaignLog:
    """Appends lines and reads those that are new, its own and those of other processes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise UsageError(f"out={str(path.parent)!r}: expected a writable directory ({error.strerror})") from error
        self._end_torn_line()
        self._read = 0

    def append(self, line: Line) -> None:
        """Write one line in one system call."""
        text = msgspec.json.encode(line) + b"\n"
        if os.write(self._fd, text) != len(text):
            raise OSError(f"{self.path}: a line was written in part: disk full?")

    def new_lines(self) -> Iterator[Line]:
        """Complete lines since the last call; a line that a kill tore is left out."""
        size = os.fstat(self._fd).st_size
        text = os.pread(self._fd, size - self._read, self._read)
        end = text.rfind(b"\n") + 1
        self._read += end
        for line in text[:end].splitlines():
            try:
                yield _DECODER.decode(line)
            except msgspec.MsgspecError:
                continue

    def close(self) -> None:
        """Flush to the disk and close."""
        os.fsync(self._fd)
        os.close(self._fd)

    def _end_torn_line(self) -> None:
        """Close a line that a kill left open, so that the next one starts afresh."""
        size = os.fstat(self._fd).st_size
        if size and os.pread(self._fd, 1, size - 1) != b"\n":
            os.write(self._fd, b"\n")
