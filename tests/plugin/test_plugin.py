"""The pytest plugin, run on tiny test files in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SUITE = """
from verify.verdict import Status

def test_conforms(attention_finding):
    assert attention_finding.status in (Status.PASS, Status.POWERLESS)
"""
NARROW = """
import pytest

@pytest.mark.attention_cases(lambda case: case.problem.causal and case.problem.dtype == "bf16")
def test_conforms(attention_finding):
    assert attention_finding.check
"""


def _pytest(tmp_path: Path, text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "test_mine.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "verify.plugin", "-p", "no:cacheprovider", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)


def test_honest_candidate_passes_the_backward_checks(tmp_path: Path) -> None:
    result = _pytest(tmp_path, SUITE, "--candidate", "numpy_tiled", "-k", "backward and normal", "--attn-in-process")
    assert result.returncode == 0, result.stdout
    assert " passed" in result.stdout


def test_impostor_fails_with_the_replay_line(tmp_path: Path) -> None:
    arguments = ("--candidate", "impostor:dropped_delta", "-k", "backward and normal", "--attn-in-process")
    result = _pytest(tmp_path, SUITE, *arguments)
    assert result.returncode == 1, result.stdout
    assert "python -m verify repro 'attn1:" in result.stdout
    assert "--candidate impostor:dropped_delta" in result.stdout


def test_unknown_candidate_stops_the_collection_in_one_line(tmp_path: Path) -> None:
    result = _pytest(tmp_path, SUITE, "--candidate", "nonsense")
    assert result.returncode == 2
    assert "candidate='nonsense': expected one of" in result.stderr + result.stdout


def test_marker_narrows_the_cases(tmp_path: Path) -> None:
    result = _pytest(tmp_path, NARROW, "--candidate", "numpy_tiled", "--collect-only")
    names = [line for line in result.stdout.splitlines() if "::" in line]
    assert names
    assert all("bf16-causal" in name for name in names)
