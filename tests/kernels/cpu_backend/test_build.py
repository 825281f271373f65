"""The cache of compiled kernels, and what is said when compiling is not possible."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernels.cpu_backend import Build, ToolchainError, compile_module, toolchain
from tests.kernels.cpu_backend.launching import write_kernel

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def cache(shared_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this file's own; the runtime and the header in it are compiled once."""
    monkeypatch.setenv("ATTN_VERIFY_CACHE", str(shared_cache))
    return shared_cache / "cpu_backend"


def images(cache: Path) -> dict[str, int]:
    """Compiled kernels and when they were written."""
    return {path.name: path.stat().st_mtime_ns for path in cache.glob("kernel-*.so")}


def test_same_source_is_compiled_once(cache: Path, tmp_path: Path) -> None:
    source = write_kernel(tmp_path, "out[0] = SCALE;")
    empty = images(cache)
    compile_module(source, entries=["kernel"], defines={"SCALE": 2})
    before = images(cache)
    started = time.process_time()
    compile_module(source, entries=["kernel"], defines={"SCALE": 2})
    assert time.process_time() - started < 0.2
    assert images(cache) == before
    assert len(before) == len(empty) + 1


@pytest.mark.parametrize("change", ["source", "header", "define", "build"])
def test_any_change_compiles_anew(change: str, cache: Path, tmp_path: Path) -> None:
    header = tmp_path / "part.cuh"
    header.write_text("#define VALUE 1\n")
    source = write_kernel(tmp_path, '#include "part.cuh"\nout[0] = VALUE * SCALE;')
    compile_module(source, entries=["kernel"], defines={"SCALE": 2})
    before = images(cache)
    if change == "source":
        source.write_text(source.read_text() + "// changed\n")
    if change == "header":
        header.write_text("#define VALUE 3\n")
    scale = 5 if change == "define" else 2
    build = Build.NOFMA if change == "build" else Build.FAST
    compile_module(source, entries=["kernel"], defines={"SCALE": scale}, build=build)
    assert len(images(cache)) == len(before) + 1


COMPILE = """
import sys
from pathlib import Path
from kernels.cpu_backend import Build, compile_module
compile_module(Path(sys.argv[1]), entries=["kernel"], build=Build.CHECKED)
"""


def test_processes_that_start_with_an_empty_cache_do_not_disturb_each_other(tmp_path: Path) -> None:
    source, cache = write_kernel(tmp_path, "out[0] = 1.0f;"), tmp_path / "cache" / "cpu_backend"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "ATTN_VERIFY_CACHE": str(cache.parent)}
    command = [sys.executable, "-c", COMPILE, str(source)]
    running = [subprocess.Popen(command, env=environment, cwd=tmp_path) for _ in range(3)]
    assert [process.wait() for process in running] == [0, 0, 0]
    assert len(images(cache)) == 2
    assert not list(cache.glob("tmp*")), "scratch folders are left"
    assert not list(cache.glob(".partial-*"))


def forget_toolchain() -> None:
    toolchain.find_compiler.cache_clear()
    toolchain.cuda_include_dir.cache_clear()


@pytest.fixture
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No compiler on the path, no packages."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(toolchain, "SYSTEM_CUDA", tmp_path)
    forget_toolchain()
    yield
    forget_toolchain()


@pytest.mark.usefixtures("bare_machine")
def test_missing_compiler_is_named_with_its_packages() -> None:
    with pytest.raises(ToolchainError, match=r"set CXX, install the system package g\+\+ or clang, or .*ziglang"):
        toolchain.find_compiler()


@pytest.mark.usefixtures("bare_machine")
def test_missing_cuda_headers_are_named_with_their_wheel() -> None:
    with pytest.raises(ToolchainError, match=r"pip install nvidia-cuda-runtime.*CUDA_HOME"):
        toolchain.cuda_include_dir()


@pytest.mark.usefixtures("bare_machine")
def test_chosen_compiler_that_does_not_run_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler -O3")
    with pytest.raises(ToolchainError, match="'no-such-compiler -O3' does not run"):
        toolchain.find_compiler()


def test_other_machine_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain.platform, "machine", lambda: "riscv64")
    with pytest.raises(ToolchainError, match="not on linux riscv64"):
        toolchain.machine_flags()
