"""Which sources a part of the self-test ran on: parts of different commands are put together only when alike."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

ROOMS = ("kernels", "references", "verify")
SUFFIXES = (".cpp", ".cu", ".cuh", ".h", ".py", ".toml", ".txt")


@cache
def sources_digest() -> str:
    """First 12 hex digits of the SHA-256 over the names and texts of the sources of kernels, references and harness."""
    root = Path(__file__).parents[2]
    sha = hashlib.sha256()
    for room in ROOMS:
        for path in sorted((root / room).rglob("*")):
            if path.suffix in SUFFIXES and path.is_file():
                sha.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    return sha.hexdigest()[:12]
