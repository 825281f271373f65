"""What is kept of a fault: a test that stands alone, a pinned case, a bundle."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from verify.commands.fuzz import fuzz_command
from verify.errors import UsageError
from verify.fuzz import load_regressions

ROOT = Path(__file__).parents[3]
OPTIONS = {
    "time_s": 20.0, "examples": 60, "jobs": 1, "seed": 0, "resume": None, "keep_going": False, "max_seqlen": 40,
    "max_head_dim": None,
    "as_json": False, "checks": "", "device": "cpu", "timeout_s": 20.0, "in_process": True, "python": None,
}  # fmt: skip


def fuzz(folder: Path, candidate: str, **options: object) -> bool:
    """Whether a small campaign found a fault."""
    own = {"out": folder, "database": str(folder / "database"), "save": True, "regressions": folder / "pinned"}
    return fuzz_command(candidate=candidate, **{**OPTIONS, **own, **options})  # type: ignore[arg-type]


def run_pytest(path: Path) -> int:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(path.parent), str(path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=environment, cwd=path.parent, capture_output=True, check=False).returncode


@pytest.mark.parametrize("name", ["scale_1pct", "stale_output", "mutates_inputs"])
def test_the_written_test_fails_on_the_fault_and_passes_on_an_honest_candidate(tmp_path: Path, name: str) -> None:
    assert fuzz(tmp_path, f"impostor:{name}")
    (written,) = tmp_path.rglob("test_*.py")
    honest = tmp_path / "test_honest.py"
    honest.write_text(written.read_text().replace(f"impostor:{name}", "numpy_tiled"))
    assert run_pytest(written) == 1
    assert run_pytest(honest) == 0


def test_the_pinned_case_fails_again_at_once_and_on_every_later_run(tmp_path: Path) -> None:
    assert fuzz(tmp_path, "impostor:scale_1pct")
    (pinned,) = load_regressions(tmp_path / "pinned")
    assert (pinned.check, pinned.status, pinned.tensor) == ("forward", "NUMERICAL", "out")
    assert fuzz(tmp_path, "impostor:scale_1pct", out=tmp_path / "later", examples=1)
    assert not fuzz(tmp_path, "numpy_tiled", out=tmp_path / "honest", examples=2)


def test_the_bundle_holds_case_inputs_got_expected_and_bound(tmp_path: Path) -> None:
    assert fuzz(tmp_path, "impostor:scale_1pct")
    (path,) = tmp_path.rglob("*.npz")
    with np.load(path) as bundle:
        assert {"case_id", "input_q", "got_out", "expected_out", "bound_out"} <= set(bundle.files)
        assert (np.abs(bundle["got_out"] - bundle["expected_out"]) > bundle["bound_out"]).any()


def test_a_folder_without_a_campaign_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="resume="):
        fuzz(tmp_path, "numpy_tiled", resume=tmp_path / "nothing")


def test_a_file_that_is_no_pinned_case_is_refused(tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text('{"case_id": "attn1:b=0"}')
    with pytest.raises(UsageError, match=r"broken\.json"):
        load_regressions(tmp_path)


def test_a_folder_that_is_not_there_yet_has_no_pinned_cases(tmp_path: Path) -> None:
    assert load_regressions(tmp_path / "later") == ()
