"""The cache loses what nobody uses, and nothing else."""

import os
import time
from pathlib import Path

import pytest

from kernels.cpu_backend import compile_module
from kernels.cpu_backend.pruning import DAY_S, KEEP_S, mark_used, prune, prune_daily
from tests.kernels.cpu_backend.launching import write_kernel


def entry(folder: Path, name: str, days: float) -> Path:
    """A file of 10 bytes, or a folder with one, last used some days ago."""
    path = folder / name
    if name.startswith(("header-", "tmp")):
        path.mkdir()
        (path / "simt_prelude.h.gch").write_text("0123456789")
    else:
        path.write_text("0123456789")
    then = time.time() - days * DAY_S
    os.utime(path, (then, then))
    return path


def test_entries_unused_for_a_month_go_with_their_logs(tmp_path: Path) -> None:
    for name in ("kernel-old.so", "kernel-old.log", "libsimt-old.so", "header-old"):
        entry(tmp_path, name, 31)
    kept = {entry(tmp_path, name, 29).name for name in ("kernel-new.so", "kernel-new.log", "header-new")}
    assert set(prune(tmp_path)) == {"kernel-old.so", "libsimt-old.so", "header-old"}
    assert {path.name for path in tmp_path.iterdir()} == kept


def test_a_large_cache_loses_the_longest_unused_first(tmp_path: Path) -> None:
    for days in (5, 3, 4, 0.5):
        entry(tmp_path, f"kernel-{days}.so", days)
    assert prune(tmp_path, max_bytes=20) == ("kernel-5.so", "kernel-4.so")
    assert prune(tmp_path, max_bytes=0) == ("kernel-3.so",)


def test_remains_of_a_killed_compiler_go_after_a_day(tmp_path: Path) -> None:
    for name, days in (("tmpabc", 2), (".partial-x", 2), ("tmpdef", 0.1), ("user-1.cu", 99), ("mutant-1.cu", 99)):
        entry(tmp_path, name, days)
    assert set(prune(tmp_path)) == {"tmpabc", ".partial-x"}


def test_use_keeps_an_entry_and_its_time_of_change(tmp_path: Path) -> None:
    path = entry(tmp_path, "kernel-a.so", 40)
    changed = path.stat().st_mtime_ns
    mark_used(path)
    assert prune(tmp_path) == ()
    assert path.stat().st_mtime_ns == changed


def test_pruning_happens_once_a_day(tmp_path: Path) -> None:
    prune_daily(tmp_path)
    old = entry(tmp_path, "kernel-a.so", 40)
    prune_daily(tmp_path)
    assert old.exists()
    os.utime(tmp_path / ".pruned", (0, 0))
    prune_daily(tmp_path)
    assert not old.exists()


def test_compiling_prunes_and_a_kernel_in_use_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTN_VERIFY_CACHE", str(tmp_path))
    folder = tmp_path / "cpu_backend"
    folder.mkdir()
    old = entry(folder, "kernel-old.so", 31)
    compile_module(write_kernel(tmp_path, "out[0] = 1;"), entries=["kernel"])
    assert not old.exists()
    (image,) = folder.glob("kernel-*.so")
    assert prune(folder, now=time.time() + KEEP_S - DAY_S) == ()
    assert image.exists()
