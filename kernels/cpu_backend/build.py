"""Compiles kernel sources and the runtime into shared objects, or takes them from the cache."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from kernels.cpu_backend.cache import cache_dir, contents, digest, run_compiler
from kernels.cpu_backend.options import Build, Checks
from kernels.cpu_backend.pruning import mark_used, prune_daily
from kernels.cpu_backend.sources import (
    CUDA_DIR,
    DEVICE_DIR,
    RUNTIME_DIR,
    refuse_static_shared,
    source_files,
    translation_unit,
)
from kernels.cpu_backend.toolchain import Compiler, cuda_include_dir, find_compiler, machine_flags

T = TypeVar("T")

COMMON_FLAGS = (
    *("-std=c++17", "-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-fno-math-errno"),
    *("-g1", "-gdwarf-4"),  # addr2line of binutils 2.40 misreads the file names of DWARF 5
    "-fno-strict-aliasing",  # kernels read a uint4 as halves through a cast, which nvcc allows
)
CHECKS_OF_BUILD: dict[Build, tuple[Checks, ...]] = {
    Build.FAST: (Checks.NOTHING,),
    Build.NOFMA: (Checks.NOTHING,),
    Build.CHECKED: (Checks.LOCALS, Checks.MEMORY),
}
"""Images of a build. The two instrumentations of a checked build exclude each other, so it has two images."""
UNDEFINED = "bounds,alignment,shift,signed-integer-overflow,float-cast-overflow,integer-divide-by-zero"
WRAPPED = ("-Wl,--wrap=memcpy", "-Wl,--wrap=memmove", "-Wl,--wrap=memset")
"""Calls that no instrumentation covers: sent to functions of the runtime that check the memory. Zig's linker cannot."""


@dataclasses.dataclass(frozen=True, slots=True)
class Image:
    """A compiled kernel source."""

    path: Path
    checks: Checks

    @property
    def uninitialised(self) -> tuple[tuple[str, int, str], ...]:
        """Uses of uninitialised variables that the compiler saw: file, line, message."""
        pattern = r"^(.+?):(\d+):\d+: warning: (.*) \[-Wuninitialized\]$"
        found = re.findall(pattern, self.path.with_suffix(".log").read_text(), re.MULTILINE)
        return tuple((file, int(line), message) for file, line, message in found)


def build_kernel(
    source: Path, entries: Sequence[str], defines: Mapping[str, str | int], build: Build
) -> tuple[Image, ...]:
    """Images with the thunks of `entries`, compiled unless the cache has them.

    Raises
    ------
    CompileError
        If the compiler refuses the source.
    ValueError
        If the source or a header of it uses static ``__shared__``.
    """
    source = source.resolve()
    for file in source_files(source):
        refuse_static_shared(file)
    unit = translation_unit(source, entries, defines)
    jobs = [functools.partial(_build_image, source, unit, build, checks) for checks in CHECKS_OF_BUILD[build]]
    return tuple(_run_all(jobs))


def build_runtime() -> Path:
    """Shared object of the runtime, compiled unless the cache has it. One serves every build of every kernel."""
    compiler = find_compiler()
    flags = (*COMMON_FLAGS, *machine_flags(), "-O2", "-Wall", "-Wextra")
    sources = sorted(RUNTIME_DIR.glob("*.cpp"))
    headers = [*sorted(RUNTIME_DIR.glob("*.h")), DEVICE_DIR / "abi.h"]
    key = digest(compiler.version, *flags, *contents([*sources, *headers]))
    target = cache_dir() / f"libsimt-{key}.so"
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=cache_dir()) as scratch:
            objects = [Path(scratch, f"{source.stem}.o") for source in sources]
            _run_all(
                [
                    functools.partial(run_compiler, compiler, [*flags, "-c", str(source)], object_file)
                    for source, object_file in zip(sources, objects, strict=True)
                ]
            )
            # The name that kernels record: the dynamic loader then takes the copy that is already in the process.
            run_compiler(compiler, ["-shared", f"-Wl,-soname,{target.name}", *map(str, objects)], target)
    mark_used(target)
    return target


def _build_image(source: Path, unit: str, build: Build, checks: Checks) -> Image:
    compiler, runtime = find_compiler(), build_runtime()
    flags = (*COMMON_FLAGS, *machine_flags(), *_image_flags(compiler, build, checks))
    key = digest(unit, compiler.version, *flags, _headers_digest(), runtime.name, *contents(source_files(source)))
    image = Image(cache_dir() / f"kernel-{key}.so", checks)
    if not image.path.exists():
        includes = [f"-I{source.parent}", f"-I{CUDA_DIR}", *_include_flags()]
        with tempfile.TemporaryDirectory(dir=cache_dir()) as scratch:
            unit_file, object_file = Path(scratch, "unit.cpp"), Path(scratch, "unit.o")
            unit_file.write_text(unit)
            prelude = _prelude(compiler, flags)
            log = run_compiler(compiler, [*flags, *prelude, *includes, "-c", str(unit_file)], object_file)
            Path(scratch, "log").write_text(log)
            Path(scratch, "log").replace(image.path.with_suffix(".log"))
            # Linked without the sanitizers' flags: the runtime takes the place of their libraries.
            wrapped = WRAPPED if checks is Checks.MEMORY and not compiler.is_zig else ()
            run_compiler(compiler, ["-shared", *wrapped, str(object_file), str(runtime)], image.path)
        prune_daily(cache_dir())
    mark_used(image.path)
    return image


def _image_flags(compiler: Compiler, build: Build, checks: Checks) -> tuple[str, ...]:
    contraction = "-ffp-contract=off" if build is Build.NOFMA else "-ffp-contract=fast"
    if checks is Checks.NOTHING:
        return ("-O2", contraction, "-w")
    # -O1 merges fewer accesses than -O2, so reports are more exact.
    common = ("-O1", contraction, "-DSIMT_CHECKED=1")
    if checks is Checks.MEMORY:
        # clang leaves a read out when a write to the same place follows; the read may be of uninitialised memory.
        all_reads = ("-mllvm", "-tsan-instrument-read-before-write=1") if compiler.is_clang else ()
        undefined = (f"-fsanitize={UNDEFINED}", "-fsanitize-recover=all")
        return (*common, "-w", "-fsanitize=thread", *all_reads, *undefined)
    callbacks = ("asan-instrumentation-with-call-threshold=0", "asan-stack=0", "asan-globals=0")
    prefix = ("-mllvm", "-{}") if compiler.is_clang else ("--param", "{}")
    parameters = [word.format(callback) for callback in callbacks for word in prefix]
    return (*common, "-Wuninitialized", "-fsanitize=kernel-address", *parameters)


def _include_flags() -> list[str]:
    cuda = cuda_include_dir()
    return [f"-I{DEVICE_DIR}", f"-isystem{cuda}", f"-isystem{cuda / 'cccl'}"]


def _prelude(compiler: Compiler, flags: tuple[str, ...]) -> list[str]:
    """Arguments that force-include simt.h; g++ takes it precompiled, which saves 0.3 s for each kernel."""
    header = DEVICE_DIR / "simt.h"
    if compiler.is_clang:
        return ["-include", str(header)]
    directory = cache_dir() / f"header-{digest(compiler.version, *flags, _headers_digest())}"
    directory.mkdir(exist_ok=True)
    mark_used(directory)
    stub, precompiled = directory / "simt_prelude.h", directory / "simt_prelude.h.gch"
    if not precompiled.exists():
        with tempfile.TemporaryDirectory(dir=cache_dir()) as scratch:
            text = Path(scratch, stub.name)
            text.write_text(f'#include "{header}"\n')
            text.replace(stub)  # first: whoever finds the precompiled file needs the one that it stands for
        run_compiler(compiler, [*flags, *_include_flags(), "-x", "c++-header", str(stub)], precompiled)
    return ["-include", str(stub)]


@functools.cache
def _headers_digest() -> str:
    """Identity of the headers that every kernel includes."""
    cuda = [cuda_include_dir() / name for name in ("cuda_fp16.h", "cuda_fp16.hpp", "cuda_bf16.h", "cuda_bf16.hpp")]
    return digest(str(DEVICE_DIR), str(cuda_include_dir()), *contents([*sorted(DEVICE_DIR.glob("*.h")), *cuda]))


def _run_all(jobs: Sequence[functools.partial[T]]) -> list[T]:
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return [future.result() for future in [pool.submit(job) for job in jobs]]
