"""Keeps the cache of compiled files small: what nobody has used for long goes, and so does what a killed compiler left.

Last use is the access time, set on purpose: file systems mounted with noatime do not keep it by themselves.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path

DAY_S = 86_400.0
KEEP_S = 30 * DAY_S
"""Entries unused for longer are removed."""
MAX_BYTES = 1 << 30
"""Beyond this the longest unused go first. One set of headers and kernels takes about 115 MB."""
SPARED_S = DAY_S
"""What was used within this time stays, whatever the size: another process may be working with it."""
_ENTRIES = ("kernel-*.so", "libsimt-*.so", "header-*")
_LEFTOVERS = ("tmp*", ".partial-*")
_STAMP = ".pruned"


def mark_used(path: Path) -> None:
    """Set the last use of an entry to now; its time of change stays. A cache that cannot be written stays as it is."""
    with contextlib.suppress(OSError):
        os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))


def prune_daily(directory: Path) -> None:
    """Prune unless that was done within a day, by this or another process."""
    stamp = directory / _STAMP
    with contextlib.suppress(OSError):
        if stamp.exists() and time.time() - stamp.stat().st_mtime < DAY_S:
            return
        stamp.touch()
        prune(directory)


def prune(directory: Path, *, now: float | None = None, max_bytes: int = MAX_BYTES) -> tuple[str, ...]:
    """Remove what has not been used for long, and the longest unused while the rest is too large.

    Parameters
    ----------
    directory
        The cache.
    now
        Seconds since the epoch; None = the clock.
    max_bytes
        Size above which entries go before their time.

    Returns
    -------
    tuple of str
        Names of what was removed.
    """
    now = time.time() if now is None else now
    entries = sorted((_last_use(path), path) for pattern in _ENTRIES for path in directory.glob(pattern))
    sizes = {path: _size(path) for _, path in entries}
    total = sum(sizes.values())
    removed = [path for p in _LEFTOVERS for path in directory.glob(p) if now - _last_use(path) > SPARED_S]
    for used, path in entries:
        if now - used > KEEP_S or (total > max_bytes and now - used > SPARED_S):
            removed.append(path)
            total -= sizes[path]
    for path in removed:
        _remove(path)
    return tuple(path.name for path in removed)


def _last_use(path: Path) -> float:
    with contextlib.suppress(FileNotFoundError):  # another process prunes as well
        status = path.stat()
        return max(status.st_atime, status.st_mtime)
    return 0.0


def _size(path: Path) -> int:
    files = path.iterdir() if path.is_dir() else (path, path.with_suffix(".log"))
    return sum(file.stat().st_size for file in files if file.is_file())


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
        path.with_suffix(".log").unlink(missing_ok=True)
