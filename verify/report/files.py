"""Writes a set of files all or nothing. Knows nothing of what is in them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from verify.errors import require


def write_together(directory: Path, texts: Mapping[str, str]) -> None:
    """Write every text under its name in `directory`, or leave the directory's files as they were.

    All texts are complete on disk under temporary names before the first is renamed, and a failed rename restores
    what was there. Lone surrogates, which UTF-8 cannot carry, are written as backslash escapes.

    Raises
    ------
    UsageError
        If `directory` is a file.
    OSError
        From the file system, after the old state is back.
    """
    require(not directory.exists() or directory.is_dir(), "directory", str(directory), "a directory or a new path")
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".report-", dir=directory) as scratch:
        staging, backup = Path(scratch, "new"), Path(scratch, "old")
        staging.mkdir()
        backup.mkdir()
        for name, text in texts.items():
            _write_durably(staging / name, text.encode("utf-8", "backslashreplace"))
        _swap(directory, staging, backup, list(texts))


def _write_durably(path: Path, content: bytes) -> None:
    with path.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def _swap(directory: Path, staging: Path, backup: Path, names: list[str]) -> None:
    for name in names:
        if (directory / name).exists():
            # A hard link would do without the copy, but some file systems have none.
            (backup / name).write_bytes((directory / name).read_bytes())
    done: list[str] = []
    try:
        for name in names:
            (staging / name).replace(directory / name)
            done.append(name)
    except OSError:
        for name in done:
            if (backup / name).exists():
                (backup / name).replace(directory / name)
            else:
                (directory / name).unlink()
        raise
