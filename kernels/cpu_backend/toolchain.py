"""Finds the C++ compiler and the CUDA headers. Nothing is looked for at import, so that the rest works without them."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
from pathlib import Path


class ToolchainError(RuntimeError):
    """The CPU backend cannot compile here; the message says what to install."""


@dataclasses.dataclass(frozen=True, slots=True)
class Compiler:
    """A C++17 compiler."""

    command: tuple[str, ...]
    """Program and leading arguments."""
    version: str
    """First line of ``--version``."""

    @property
    def is_clang(self) -> bool:
        """Whether the command line and the diagnostics are clang's."""
        return "clang" in self.version.lower()

    @property
    def is_zig(self) -> bool:
        """Whether it is the clang inside Zig, which names processors differently and sanitizes unasked."""
        return "zig" in self.version.lower()


SYSTEM_CUDA = Path("/usr/local/cuda")
CUDA_HEADERS = ("cuda_fp16.h", "vector_types.h", "crt/host_defines.h", "nv/target")
"""Of the wheels nvidia-cuda-runtime, nvidia-cuda-crt and nvidia-cuda-cccl; a toolkit keeps the last under cccl/."""
MACHINES = {"x86_64": "x86-64-v3", "aarch64": "armv8.2-a+fp16"}


def machine_flags() -> tuple[str, ...]:
    """Compiler flags for this machine.

    Raises
    ------
    ToolchainError
        Outside Linux, on another architecture, or on an x86-64 processor without AVX2.
    """
    machine = platform.machine()
    if sys.platform != "linux" or machine not in MACHINES:
        raise ToolchainError(f"the CPU backend runs on Linux x86-64 or aarch64, not on {sys.platform} {machine}")
    if machine == "x86_64" and " avx2 " not in f" {Path('/proc/cpuinfo').read_text()} ":
        raise ToolchainError("the CPU backend needs AVX2, FMA and F16C (x86-64-v3), which this processor lacks")
    if find_compiler().is_zig:
        return ("-mcpu=x86_64_v3" if machine == "x86_64" else "-mcpu=generic+v8_2a+fullfp16", "-fno-sanitize=undefined")
    return (f"-march={MACHINES[machine]}",)


@functools.cache
def find_compiler() -> Compiler:
    """The compiler in use: ``$CXX``, g++, clang++, or the one inside the ``ziglang`` wheel.

    g++ comes first: clang keeps more local variables in registers, where a checked build cannot watch them.

    Raises
    ------
    ToolchainError
        If none is there, or ``$CXX`` does not run.
    """
    if chosen := os.environ.get("CXX"):
        return _describe(tuple(shlex.split(chosen)))
    for name in ("g++", "clang++"):
        if path := shutil.which(name):
            return _describe((path,))
    if importlib.util.find_spec("ziglang"):
        return _describe((sys.executable, "-m", "ziglang", "c++"))
    raise ToolchainError("no C++ compiler: set CXX, install the system package g++ or clang, or `pip install ziglang`")


def _describe(command: tuple[str, ...]) -> Compiler:
    try:
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise ToolchainError(f"the C++ compiler {shlex.join(command)!r} does not run: {error}") from error
    return Compiler(command, done.stdout.splitlines()[0])


@functools.cache
def cuda_include_dir() -> Path:
    """Directory that holds the headers of `CUDA_HEADERS`.

    Looked for in the wheels of NVIDIA, then in ``$CUDA_HOME``, then in
    /usr/local/cuda.

    Raises
    ------
    ToolchainError
        If none of them has the headers.
    """
    candidates: list[Path] = []
    spec = importlib.util.find_spec("nvidia")
    for root in (spec.submodule_search_locations or ()) if spec else ():
        candidates += [*sorted(Path(root).glob("cu[0-9]*/include"), reverse=True), Path(root, "cuda_runtime/include")]
    if home := os.environ.get("CUDA_HOME"):
        candidates.append(Path(home, "include"))
    candidates.append(SYSTEM_CUDA / "include")
    for directory in candidates:
        if all(any((root / header).is_file() for root in (directory, directory / "cccl")) for header in CUDA_HEADERS):
            return directory
    raise ToolchainError(
        "no CUDA headers (cuda_fp16.h): `pip install nvidia-cuda-runtime nvidia-cuda-crt`, "
        "or set CUDA_HOME to a CUDA toolkit"
    )
