"""Compiles kernel sources and the runtime into shared objects, kept in a content-addressed cache.

File names in the cache are hashes of everything that went in, files appear by atomic rename, nothing is ever changed in
place: concurrent processes need no lock, and a stale entry cannot be picked up.
"""

from __future__ import annotations

import concurrent.futures
import functools
import hashlib
import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from kernels.cpu_backend.options import Build
from kernels.cpu_backend.toolchain import Compiler, cuda_include_dir, find_compiler, machine_flags

HERE = Path(__file__).parent
DEVICE_DIR = HERE / "device"
RUNTIME_DIR = HERE / "runtime"
CUDA_DIR = HERE.parent / "cuda"

COMMON_FLAGS = ("-std=c++17", "-fPIC", "-fvisibility=hidden", "-g1", "-fno-exceptions", "-fno-math-errno")
UNDEFINED_CHECKS = "bounds,alignment,shift,signed-integer-overflow,float-cast-overflow,integer-divide-by-zero"
BUILD_FLAGS: dict[Build, tuple[str, ...]] = {
    Build.FAST: ("-O2", "-ffp-contract=fast"),
    Build.NOFMA: ("-O2", "-ffp-contract=off"),
    Build.CHECKED: (
        # -O1 merges fewer accesses than -O2, so reports are more exact.
        *("-O1", "-ffp-contract=fast", "-fsanitize=thread", f"-fsanitize={UNDEFINED_CHECKS}", "-fsanitize-recover=all"),
    ),
}
WRAPPED = ("-Wl,--wrap=memcpy", "-Wl,--wrap=memmove", "-Wl,--wrap=memset")


class CompileError(RuntimeError):
    """A kernel source was refused; the message holds the compiler's diagnostics."""


def cache_dir() -> Path:
    """Directory of compiled files: ``$ATTN_VERIFY_CACHE``, or ``attn-verify`` in the XDG cache directory."""
    if chosen := os.environ.get("ATTN_VERIFY_CACHE"):
        root = Path(chosen)
    else:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "attn-verify"
    directory = root / "cpu_backend"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def build_kernel(source: Path, entries: Sequence[str], defines: Mapping[str, str | int], build: Build) -> Path:
    """Shared object with the thunks of `entries`, compiled unless the cache has it.

    Raises
    ------
    CompileError
        If the compiler refuses the source.
    ValueError
        If the source or a header of it uses static ``__shared__``.
    """
    source = source.resolve()
    files = source_files(source)
    for file in files:
        refuse_static_shared(file)
    compiler, flags = find_compiler(), _kernel_flags(build)
    text = _translation_unit(source, entries, defines)
    runtime = build_runtime()
    inputs = (text, compiler.version, *flags, str(cuda_include_dir()), *_contents(files), _device_digest(), runtime.name)
    target = cache_dir() / f"kernel-{_digest(*inputs)}.so"
    if not target.exists():
        prelude = _prelude(compiler, flags)
        includes = [f"-I{source.parent}", f"-I{CUDA_DIR}", *_include_flags()]
        with tempfile.TemporaryDirectory(dir=cache_dir()) as scratch:
            unit = Path(scratch, "unit.cpp")
            unit.write_text(text)
            object_file = Path(scratch, "unit.o")
            _run(compiler, [*flags, *prelude, *includes, "-w", "-c", str(unit)], object_file)
            # Linked without -fsanitize: the runtime takes the place of the sanitizers' libraries.
            wrapped = WRAPPED if build is Build.CHECKED else ()
            _run(compiler, ["-shared", *wrapped, str(object_file), str(runtime)], target)
    return target


def build_runtime() -> Path:
    """Shared object of the runtime, compiled unless the cache has it. One serves every build of every kernel."""
    compiler = find_compiler()
    flags = (*COMMON_FLAGS, *machine_flags(), "-O2", "-Wall", "-Wextra")
    sources = sorted(RUNTIME_DIR.glob("*.cpp"))
    headers = [*sorted(RUNTIME_DIR.glob("*.h")), DEVICE_DIR / "abi.h"]
    key = _digest(compiler.version, *flags, *_contents([*sources, *headers]))
    target = cache_dir() / f"libsimt-{key}.so"
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=cache_dir()) as scratch:
            objects = [Path(scratch, f"{source.stem}.o") for source in sources]
            with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
                jobs = [
                    pool.submit(_run, compiler, [*flags, "-c", str(source)], object_file)
                    for source, object_file in zip(sources, objects, strict=True)
                ]
                for job in jobs:
                    job.result()
            # The name that kernels record: the loader then finds the copy that is already in the process.
            _run(compiler, ["-shared", f"-Wl,-soname,{target.name}", *map(str, objects)], target)
    return target


INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


def source_files(source: Path) -> list[Path]:
    """`source` and the project headers that it includes with quotes, directly or not, in the order found."""
    found = [source]
    for file in found:
        for name in INCLUDE.findall(file.read_text()):
            for directory in (file.parent, source.parent, CUDA_DIR):
                path = (directory / name).resolve()
                if path.is_file():
                    if path not in found:
                        found.append(path)
                    break
    return found


def refuse_static_shared(file: Path) -> None:
    """Refuse static ``__shared__``: it would lie outside of the guarded, poisoned window.

    Raises
    ------
    ValueError
        With file and line of the first use.
    """
    if file.name == "ptx.cuh":
        return
    for number, line in enumerate(_without_comments(file.read_text()).splitlines(), start=1):
        if re.search(r"\b__shared__\b", line):
            raise ValueError(f"{file}:{number}: static __shared__ is not supported, use DYN_SMEM(name) of ptx.cuh")


def _without_comments(text: str) -> str:
    """`text` with comments blanked and line breaks kept."""
    return re.sub(r"//[^\n]*|/\*.*?\*/", lambda found: "\n" * found[0].count("\n"), text, flags=re.DOTALL)


def _translation_unit(source: Path, entries: Sequence[str], defines: Mapping[str, str | int]) -> str:
    lines = [f"#define {name} {value}" for name, value in sorted(defines.items())]
    lines.append(f'#include "{source}"')
    lines += [f"SIMT_ENTRY({entry})" for entry in entries]
    return "\n".join(lines) + "\n"


def _kernel_flags(build: Build) -> tuple[str, ...]:
    return (*COMMON_FLAGS, *machine_flags(), *BUILD_FLAGS[build])


def _include_flags() -> list[str]:
    return [f"-I{DEVICE_DIR}", f"-isystem{cuda_include_dir()}"]


def _prelude(compiler: Compiler, flags: tuple[str, ...]) -> list[str]:
    """Arguments that force-include simt.h; g++ takes it precompiled, which saves 0.3 s for each kernel."""
    header = DEVICE_DIR / "simt.h"
    if compiler.is_clang:
        return ["-include", str(header)]
    key = _digest(compiler.version, *flags, str(cuda_include_dir()), str(DEVICE_DIR), _device_digest())
    directory = cache_dir() / f"header-{key}"
    directory.mkdir(exist_ok=True)
    stub, precompiled = directory / "simt_prelude.h", directory / "simt_prelude.h.gch"
    if not precompiled.exists():
        with tempfile.TemporaryDirectory(dir=cache_dir()) as scratch:
            text = Path(scratch, "simt_prelude.h")
            text.write_text(f'#include "{header}"\n')
            _run(compiler, [*flags, *_include_flags(), "-w", "-x", "c++-header", str(text)], precompiled)
            os.replace(text, stub)
    return ["-include", str(stub)]


def _run(compiler: Compiler, arguments: Sequence[str], target: Path) -> None:
    """Compile to a temporary file beside `target`, then rename it."""
    handle, partial = tempfile.mkstemp(dir=target.parent, prefix=".partial-")
    os.close(handle)
    try:
        command = [*compiler.command, *arguments, "-o", partial]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CompileError(done.stderr.strip() or f"the compiler ended with code {done.returncode}")
        os.replace(partial, target)
    finally:
        Path(partial).unlink(missing_ok=True)


@functools.cache
def _device_digest() -> str:
    return _digest(*_contents(sorted(DEVICE_DIR.glob("*.h"))))


def _contents(files: Iterable[Path]) -> list[str]:
    return [file.read_text() for file in files]


def _digest(*parts: str) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)}:{part}".encode())
    return digest.hexdigest()[:24]
