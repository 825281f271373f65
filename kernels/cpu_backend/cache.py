"""Cache of compiled files.

File names are hashes of everything that went in, files appear by atomic rename, nothing is changed in place: concurrent
processes need no lock, and a stale entry cannot be picked up.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from kernels.cpu_backend.toolchain import Compiler


class CompileError(RuntimeError):
    """A source was refused; the message holds the compiler's diagnostics."""


def cache_dir() -> Path:
    """Directory of compiled files: ``$ATTN_VERIFY_CACHE``, or ``attn-verify`` in the XDG cache directory."""
    if chosen := os.environ.get("ATTN_VERIFY_CACHE"):
        root = Path(chosen)
    else:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "attn-verify"
    directory = root / "cpu_backend"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def digest(*parts: str) -> str:
    """Hash of a sequence of strings."""
    state = hashlib.sha256()
    for part in parts:
        state.update(f"{len(part)}:{part}".encode())
    return state.hexdigest()[:24]


def contents(files: Iterable[Path]) -> list[str]:
    """Text of each file."""
    return [file.read_text() for file in files]


def run_compiler(compiler: Compiler, arguments: Sequence[str], target: Path) -> str:
    """Compile to a temporary file beside `target`, rename it, and return the diagnostics.

    Raises
    ------
    CompileError
        If the compiler refuses.
    """
    handle, partial = tempfile.mkstemp(dir=target.parent, prefix=".partial-")
    os.close(handle)
    try:
        command = [*compiler.command, *arguments, "-o", partial]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CompileError(done.stderr.strip() or f"the compiler ended with code {done.returncode}")
        Path(partial).replace(target)
        return done.stderr
    finally:
        Path(partial).unlink(missing_ok=True)
