"""One run over every hostile kernel in `kernels`: each ends in its status, and the run is complete."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from verify.record import Record, decode_record
from verify.verdict import Status

HERE = Path(__file__).parent
CASES = 2
EXPECTED = {
    "segfault_at_second_call": {Status.PASS, Status.CRASH},
    "abort": {Status.CRASH},
    "infinite_loop": {Status.HANG},
    "sleep_past_timeout": {Status.HANG},
    "os_exit": {Status.CRASH},
    "sys_exit": {Status.CRASH},
    "raise_system_exit": {Status.CRASH},
    "allocate_until_refused": {Status.OUT_OF_MEMORY},
    "leave_process_behind": {Status.PASS},
    "close_pipes": {Status.CRASH},
    "garbage_on_stdout": {Status.PASS},
    "print_megabytes": {Status.PASS},
    "fake_reply": {Status.CRASH},
    "modify_inputs": {Status.MUTATED_INPUT},
    "modify_global_state": {Status.PASS},
    "modify_torch_state": {Status.PASS},
    "patch_allclose": {Status.NUMERICAL},
    "return_views_of_inputs": {Status.NUMERICAL},
    "wrong_dtype": {Status.DTYPE},
    "wrong_shape": {Status.SHAPE},
    "wrong_count": {Status.SHAPE},
    "noncontiguous_output": {Status.PASS},
    "generator": {Status.LAUNCH_ERROR},
    "coroutine": {Status.LAUNCH_ERROR},
    "lazy_result": {Status.LAUNCH_ERROR},
    "nan_payloads": {Status.NONFINITE},
    "cached_answer": {Status.PASS, Status.NUMERICAL},
    "delete_cache": {Status.PASS},
}
"""Kernel -> statuses over the two cases."""
if find_spec("torch") is None:
    del EXPECTED["modify_torch_state"]


@dataclass(frozen=True)
class Campaign:
    """What is left of the run."""

    exit_code: int
    records: list[Record]
    summary: dict[str, object]
    mark: str
    pids: list[int]
    shared_memory: set[str]


def _capture(path: Path) -> None:
    """Two calls of one shape with different values."""
    random = np.random.default_rng(3)
    names = [f"{call}/{name}" for call in range(CASES) for name in ("q", "k", "v")]
    np.savez(path, **{name: random.standard_normal((1, 5, 2, 8), dtype=np.float32) for name in names})


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    folder = tmp_path_factory.mktemp("hostile")
    _capture(folder / "two.npz")
    (folder / "cache").mkdir()
    mark = secrets.token_hex(8)
    environment = os.environ | {
        "HOSTILE_RUN": mark,
        "HOSTILE_PIDS": str(folder / "pids"),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "PYTHONPATH": str(HERE.parents[2]),
    }
    command = [sys.executable, "-m", "verify", "run", "--jobs", "1", "--timeout", "4", "--json", "--device", "cpu"]
    command += ["--checks", "contract,forward", "--capture", str(folder / "two.npz"), "--out", str(folder / "out")]
    for name in EXPECTED:
        command += ["--candidate", f"{HERE / 'kernels' / name}.py::attention"]
    before = set(os.listdir("/dev/shm"))  # noqa: PTH208 - names are all that is compared
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240)
    assert run.stdout, run.stderr
    (journal,) = (folder / "out").glob("records-*.jsonl")
    return Campaign(
        exit_code=run.returncode,
        records=[decode_record(line) for line in journal.read_bytes().splitlines()],
        summary=json.loads(run.stdout),
        mark=mark,
        pids=[int(line) for line in (folder / "pids").read_text().split()],
        shared_memory={name for name in set(os.listdir("/dev/shm")) - before if name.startswith(("attn", "psm_"))},  # noqa: PTH208
    )


def _marked(mark: str) -> Iterator[int]:
    """Processes that inherited the mark of the run."""
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"HOSTILE_RUN={mark}".encode() in entry.read_bytes().split(b"\0"):
                yield int(entry.parent.name)
        except OSError:  # it has ended, or is another user's
            continue


@pytest.mark.parametrize("name", EXPECTED)
def test_kernel_ends_in_its_status(name: str, campaign: Campaign) -> None:
    found = [r.verdict for r in campaign.records if Path(r.candidate.partition("::")[0]).stem == name]
    assert len(found) == CASES
    assert {verdict.status for verdict in found} == EXPECTED[name], [verdict.findings for verdict in found]


def test_run_is_complete_and_fails(campaign: Campaign) -> None:
    assert campaign.exit_code == 1
    assert len(campaign.records) == CASES * len(EXPECTED)


def test_every_hostile_kernel_is_in_the_list() -> None:
    assert {path.stem for path in (HERE / "kernels").glob("*.py")} == {*EXPECTED, "honest", "modify_torch_state"}


def test_no_process_is_left(campaign: Campaign) -> None:
    assert list(_marked(campaign.mark)) == []
    assert campaign.pids
    assert not [pid for pid in campaign.pids if Path(f"/proc/{pid}/exe").exists()]


def test_no_shared_memory_is_left(campaign: Campaign) -> None:
    assert not campaign.shared_memory
