"""Records on disk: one O_APPEND write a line, so that a kill at any moment loses at most the line being written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from verify.errors import UsageError
from verify.record import Record, decode_record, encode_record


class Journal:
    """Appends records to DIRECTORY/records-RUN_ID.jsonl. A context manager; the directory is made if need be.

    Raises
    ------
    UsageError
        If the file cannot be made.
    """

    def __init__(self, directory: Path, run_id: str) -> None:
        self.path = directory / f"records-{run_id}.jsonl"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise UsageError(f"out={str(directory)!r}: expected a writable directory ({error.strerror})") from error

    def append(self, record: Record) -> None:
        """Write one record in one system call."""
        self.append_line(encode_record(record))

    def append_line(self, line: bytes) -> None:
        """Write one encoded record in one system call."""
        written = os.write(self._fd, line)
        if written != len(line):
            raise OSError(f"wrote {written} of {len(line)} bytes of a record: disk full?")

    def close(self) -> None:
        """Flush to the disk and close."""
        os.fsync(self._fd)
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_records(path: Path) -> Iterator[Record]:
    """Records of a journal, in order of writing; a torn last line is left out, a bad line elsewhere is an error.

    Raises
    ------
    UsageError
        If the file cannot be read or a complete line is no record.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise UsageError(f"records={str(path)!r}: expected a readable journal ({error.strerror})") from error
    for number, line in enumerate(lines[:-1], start=1):
        try:
            yield decode_record(line)
        except msgspec.MsgspecError as error:
            raise UsageError(f"records={path}:{number}: expected a record ({error})") from error
