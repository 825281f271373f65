"""A mutant as a candidate: the patched sources, compiled by the CPU backend, behind the honest adapter."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from kernels.backend import Launch
from kernels.cpu_backend import cache_dir
from kernels.cpu_backend.cache import digest
from kernels.cpu_backend.sources import PTX_HEADER, source_files
from kernels.kernel import Direction, Kernel, Tile
from kernels.registry import kernel_named
from verify.candidate import Call, Reply
from verify.candidates.cuda import CudaKernel, contract_of
from verify.candidates.cuda_host import HostMachine
from verify.detection.mutant import LaunchPatch, Mutant
from verify.detection.mutants import mutant_named

SMALL_BUCKET = 32
SMALL_TILE = Tile(q=16, k=32, threads=128)
"""Tile of every mutant: small, so that short sequences have several tiles; with TILE_Q, TILE_K, the columns of a thread
and the thread grid all different, so that no two of them can be confused unnoticed."""


class SmallKernel(CudaKernel):
    """The honest kernel with the same small tile as its mutants."""

    def __init__(self, name: str, variant: str = "") -> None:
        super().__init__(name, variant)
        self._kernel = with_small_tile(kernel_named(name))
        self.contract = contract_of(self._kernel)


class MutantKernel(SmallKernel):
    """A kernel of the registry with one seeded fault. It declares what the honest one declares."""

    def __init__(self, mutant: Mutant, variant: str = "") -> None:
        super().__init__(mutant.kernel, variant)
        self.name = f"mutant:{mutant.name}" + (f":{variant}" if variant else "")
        self.mutant = mutant
        self._kernel = patched_kernel(mutant, self._kernel)

    def run(self, call: Call) -> Reply:
        """As the honest kernel, through the patched launches."""
        if self._machine is None:
            machine = HostMachine(self._variant)
            if self.mutant.launch_patch is not None:
                patched: Any = PatchedBackend(machine.backend, self.mutant.launch_patch())
                machine.backend = patched
            self._machine = machine
        return super().run(call)


class PatchedBackend:
    """A backend whose launches pass through a patch; everything else is the backend's."""

    def __init__(self, backend: Any, patch: LaunchPatch) -> None:
        self._backend = backend
        self._patch = patch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def launch(self, launch: Launch) -> None:
        patched = self._patch(launch)
        if patched is not None:
            self._backend.launch(patched)


def build(name: str) -> MutantKernel:
    """The candidate of `NAME` or `NAME:VARIANT`, variants as of the CUDA kernels.

    Raises
    ------
    UsageError
        Unknown mutant, or an anchor that does not occur exactly once.
    """
    mutant, _, variant = name.partition(":")
    return MutantKernel(mutant_named(mutant), variant)


def with_small_tile(kernel: Kernel) -> Kernel:
    """The kernel with SMALL_TILE as its preferred tile; unchanged where it has no tiles."""

    def shrunk(direction: Direction) -> Direction:
        return replace(direction, tiles={SMALL_BUCKET: (SMALL_TILE,)})

    if 0 in kernel.forward.tiles:
        return kernel
    return replace(kernel, forward=shrunk(kernel.forward), backward=shrunk(kernel.backward))


def patched_kernel(mutant: Mutant, kernel: Kernel) -> Kernel:
    """The kernel with the patched source, written to the cache, and the patched description."""
    if mutant.patches:
        kernel = replace(kernel, source=write_sources(mutant, kernel.source))
    return mutant.kernel_patch(kernel) if mutant.kernel_patch is not None else kernel


def write_sources(mutant: Mutant, source: Path) -> Path:
    """Source and headers with the patches applied, in a folder of the cache named by their content."""
    changed = mutant.files()
    # The header with the inline assembly stays where it is: no mutant touches it, and it alone may hold what it holds.
    files = [file for file in source_files(source) if file != PTX_HEADER]
    texts = {file.name: changed.get(file.name, file.read_text()) for file in files}
    folder = cache_dir() / f"mutant-{digest(*[part for item in sorted(texts.items()) for part in item])}"
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        write_once(folder / name, text)
    return folder / source.name


def write_once(path: Path, text: str) -> None:
    """Write a file by rename, unless it is there."""
    if not path.exists():
        partial = path.with_name(f".{path.name}-{os.getpid()}")
        partial.write_text(text)
        partial.replace(path)
