"""Compiles a kernel source to a cubin with NVRTC, for any architecture and with no GPU, and reads what ptxas reports.

The same cubin is what `gpu_backend` loads, so what is gated without a GPU is what runs on one. Denormals are kept and
divisions are exact (NVRTC's defaults): CuPy's own compile path would add -ftz=true.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kernels.backend import Module
from kernels.cpu_backend.cache import cache_dir
from kernels.cpu_backend.sources import source_files
from kernels.cpu_backend.toolchain import cuda_include_dir


class NvrtcError(RuntimeError):
    """NVRTC is missing or refused a source; the message holds its diagnostics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What one entry point takes of an SM, as ptxas reports it."""

    registers: int
    """Per thread."""
    spill_store_bytes: int
    spill_load_bytes: int
    stack_bytes: int
    """Local memory per thread."""
    static_shared_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cubin:
    """Machine code of one variant for one architecture."""

    path: Path
    arch: str
    usage: Mapping[str, Usage]
    """Entry point -> resources."""


def compile_cubin(module: Module, arch: str) -> Cubin:
    """Compile for `arch` (sm_75, sm_80, sm_90a, ...) or take the result from the on-disk cache.

    Raises
    ------
    NvrtcError
        NVRTC cannot be loaded or refuses the source.
    ToolchainError
        The CUDA headers are missing.
    """
    options = _options(module, arch)
    key = _key(module, options)
    directory = cache_dir().parent / "cubin"
    directory.mkdir(parents=True, exist_ok=True)
    image, log = directory / f"{key}.cubin", directory / f"{key}.log"
    if not (image.exists() and log.exists()):
        code, text = _compile(module.source, options)
        _write(log, text.encode())
        _write(image, code)
    return Cubin(path=image, arch=arch, usage=parse_usage(log.read_text()))


def parse_usage(log: str) -> dict[str, Usage]:
    """Entry point -> resources, from the lines of `ptxas -v`."""
    found = {}
    for name, block in re.findall(
        r"Compiling entry function '(\w+)'(.*?)(?=Compiling entry function|\Z)", log, re.DOTALL
    ):
        found[name] = Usage(
            registers=_number(r"Used (\d+) registers", block),
            spill_store_bytes=_number(r"(\d+) bytes spill stores", block),
            spill_load_bytes=_number(r"(\d+) bytes spill loads", block),
            stack_bytes=_number(r"(\d+) bytes stack frame", block),
            static_shared_bytes=_number(r"(\d+) bytes smem", block),
        )
    return found


def _number(pattern: str, text: str) -> int:
    match = re.search(pattern, text)
    return int(match[1]) if match else 0


def _options(module: Module, arch: str) -> tuple[str, ...]:
    defines = (f"-D{name}={value}" for name, value in sorted(module.defines.items()))
    return (
        f"-arch={arch}",
        "-std=c++17",
        f"-I{module.source.parent}",
        f"-I{cuda_include_dir()}",
        "-lineinfo",
        "--ptxas-options=-v",
        *defines,
    )


def _key(module: Module, options: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for part in (*map(str, _nvrtc_version()), *options, *(file.read_text() for file in source_files(module.source))):
        digest.update(f"{len(part)}:{part}".encode())
    return digest.hexdigest()[:24]


@functools.cache
def _nvrtc_version() -> tuple[int, int]:
    try:
        from cupy.cuda import nvrtc
    except ImportError as error:
        raise NvrtcError(f"nvrtc: {error}; expected cupy with the nvidia-cuda-nvrtc wheel or a CUDA toolkit") from error
    major, minor = nvrtc.getVersion()
    return major, minor


def _compile(source: Path, options: tuple[str, ...]) -> tuple[bytes, str]:
    """(cubin, log). Only the low-level interface: the rest of CuPy asks for a device first."""
    from cupy.cuda import nvrtc

    program = nvrtc.createProgram(source.read_text(), source.name, (), ())
    try:
        nvrtc.compileProgram(program, options)
        return bytes(nvrtc.getCUBIN(program)), str(nvrtc.getProgramLog(program))
    except nvrtc.NVRTCError as error:
        raise NvrtcError(f"{source.name}: {error}\n{nvrtc.getProgramLog(program)}") from error
    finally:
        nvrtc.destroyProgram(program)


def _write(target: Path, data: bytes) -> None:
    """Appear whole or not at all, whoever else writes the same file."""
    handle, partial = tempfile.mkstemp(dir=target.parent, prefix=".partial-")
    with os.fdopen(handle, "wb") as file:
        file.write(data)
    Path(partial).replace(target)
