"""What a person types: exit codes, one-line errors, JSON on stdout, nothing half-written."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

CASE = "attn1:b=1,sq=3,sk=5,h=2,d=8,dtype=fp32,recipe=normal,seed=1"
COUNTING = """
import numpy as np

def attention(q, k, v, softmax_scale):
    with open("calls", "a") as log:
        log.write("x")
    return np.zeros_like(q)
"""


def _verify(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root), "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, "-m", "verify", *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--candidate", "nonsense"], "candidate='nonsense': expected one of"),
        (["run", "--checks", "nonsense"], "checks='nonsense': expected one of"),
        (["run", "--jobs", "0"], "jobs=0: expected an integer >= 1"),
        (["run", "--seed", "-1"], "seed=-1: expected an integer in"),
        (["run", "--device", "gpu", "--candidate", "numpy_tiled"], "device='gpu': expected a machine with a GPU"),
        (["run", "-k", "no such case"], "k='no such case': expected text that occurs"),
        (["run", "--capture", "missing.npz"], "missing.npz"),
        (["run", "--profile", "nonsense"], "'nonsense' is not one of"),
        (["repro", "attn1:h=3,hkv=2", "--candidate", "numpy_tiled"], "nheads=3: expected a multiple of nheads_kv=2"),
        (["repro", "attn1:b=x", "--candidate", "numpy_tiled"], "expected a value of batch"),
        (["repro", "b=2", "--candidate", "numpy_tiled"], "expected text that starts with 'attn1:'"),
        (["repro", CASE.replace("fp32", "fp8"), "--candidate", "numpy_tiled"], "dtype='fp8': expected one of"),
        (["repro", CASE.replace("normal", "nonsense"), "--candidate", "numpy_tiled"], "nonsense"),
    ],
    ids=lambda value: "-".join(value[:3]) if isinstance(value, list) else "",
)  # fmt: skip
def test_bad_usage_is_one_line_and_exit_code_2(arguments: list[str], message: str, tmp_path: Path) -> None:
    result = _verify(*arguments, cwd=tmp_path)
    assert result.returncode == 2, result.stderr
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert not list(tmp_path.rglob("index.html"))


def test_unwritable_out_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = _verify("run", "--candidate", "numpy_tiled", "--out", "file/x", cwd=tmp_path)
    assert result.returncode == 2
    assert "expected a writable directory" in result.stderr


def test_right_candidate_exits_0_and_prints_one_json_document(tmp_path: Path) -> None:
    result = _verify("run", "--candidate", "numpy_tiled", "-k", "normal", "--jobs", "1", "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)
    assert set(summary["totals"]) <= {"PASS", "UNSUPPORTED", "POWERLESS"}
    assert Path(tmp_path / summary["report"]).exists()


def test_wrong_candidate_exits_1_and_names_its_cases(tmp_path: Path) -> None:
    result = _verify("--candidate", "impostor:zeros", "-k", "normal", "--jobs", "2", "--json", cwd=tmp_path)
    assert result.returncode == 1, result.stderr
    finding = json.loads(result.stdout)["findings"][0]
    assert finding["case_id"] in finding["repro"]


def test_repro_of_a_failure_shows_the_case_and_saves_a_bundle(tmp_path: Path) -> None:
    result = _verify("repro", CASE, "--candidate", "impostor:scale_1pct", "--save", "case.npz", cwd=tmp_path)
    assert result.returncode == 1, result.stderr
    assert "NUMERICAL" in result.stdout
    assert CASE in result.stdout
    with np.load(tmp_path / "case.npz") as bundle:
        error = np.abs(bundle["got_lse"] - bundle["expected_lse"])
        assert (error > bundle["bound_lse"]).any()


def test_saving_the_bundle_calls_the_candidate_no_more_often(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(COUNTING)
    for options in ([], ["--save", "case.npz"]):
        arguments = ("repro", CASE, "--candidate", "mine.py::attention", "--checks", "forward", *options)
        result = _verify(*arguments, cwd=tmp_path)
        assert result.returncode == 1, result.stderr
    assert len((tmp_path / "calls").read_text()) == 2
    with np.load(tmp_path / "case.npz") as bundle:
        assert {"input_q", "got_out", "expected_out", "bound_out"} <= set(bundle)


def test_bundle_of_a_case_that_is_not_declared_holds_the_inputs(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(COUNTING)
    case = CASE.replace("h=2", "h=2,softcap=3.0")
    result = _verify("repro", case, "--candidate", "mine.py::attention", "--save", "case.npz", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert not (tmp_path / "calls").exists()
    with np.load(tmp_path / "case.npz") as bundle:
        assert {"input_q", "input_k", "input_v"} <= set(bundle)


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_stopped_run_keeps_its_records_and_leaves_no_process(sent: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "verify", "run", "--candidate", "numpy_tiled", "--profile", "full", "--jobs", "2"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as run:
        assert run.stdout is not None
        assert "judged" in run.stdout.readline()
        run.send_signal(sent)
        # The pipe closes when the last process that holds it has ended.
        run.communicate(timeout=30)
    (journal,) = tmp_path.glob("attn-verify-report/records-*.jsonl")
    report = _verify("report", str(journal), cwd=tmp_path)
    assert run.returncode == (130 if sent is signal.SIGINT else -sent)
    assert report.returncode == 0, report.stderr


def test_list_names_candidates_checks_and_recipes(tmp_path: Path) -> None:
    result = _verify("list", "--json", cwd=tmp_path)
    listed = {kind: {row["name"] for row in rows} for kind, rows in json.loads(result.stdout).items()}
    assert {"torch_flash", "torch_math", "torch_flex", "numpy_tiled"} <= listed["candidates"]
    assert {"forward", "lse", "backward"} <= listed["checks"]
    assert len(listed["recipes"]) >= 16


def test_list_shows_one_section_and_says_why_a_candidate_is_absent(tmp_path: Path) -> None:
    result = _verify("list", "candidates", cwd=tmp_path)
    assert "numpy_tiled" in result.stdout
    assert "recipes" not in result.stdout
    assert "not available here" not in result.stdout or "pip install" in result.stdout or "CUDA" in result.stdout


def test_doctor_says_what_is_there(tmp_path: Path) -> None:
    result = _verify("doctor", cwd=tmp_path)
    assert result.returncode == 0
    assert "kernels" in result.stdout
