"""A campaign that was stopped or killed goes on from its log; nothing that was found is lost."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.verify.fuzz.support import campaign
from verify.fuzz.log import CampaignLog, Found, Gone, Progress, Reduced, log_path

SCRIPT = """
import sys
from pathlib import Path
from verify.fuzz import Plan, run_campaign
if __name__ == "__main__":
    plan = Plan(candidate=sys.argv[1], out=Path(sys.argv[2]), database=sys.argv[2] + "/database", jobs=int(sys.argv[3]),
                seconds=60.0, in_process=True, keep_going=True, max_seqlen=40)
    sys.exit(5 if run_campaign(plan)[1] else 0)
"""
ROOT = Path(__file__).parents[3]


def started(folder: Path, candidate: str, jobs: int) -> "subprocess.Popen[bytes]":
    """A campaign in a process of its own, once it has judged something."""
    script = folder / "campaign_script.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, str(script), candidate, str(folder), str(jobs)], env=environment)
    deadline = time.monotonic() + 50
    while not any(isinstance(line, Progress) and line.examples for line in lines_of(folder, candidate)):
        assert time.monotonic() < deadline, "nothing was judged"
        assert process.poll() is None, "the campaign ended by itself"
        time.sleep(0.1)
    return process


def lines_of(folder: Path, candidate: str) -> list[object]:
    path = log_path(folder, candidate)
    return list(CampaignLog(path).new_lines()) if path.exists() else []


def test_kill_9_loses_nothing_that_was_found(tmp_path: Path) -> None:
    process = started(tmp_path, "impostor:scale_1pct", jobs=1)
    process.kill()
    process.wait()
    before = [line for line in lines_of(tmp_path, "impostor:scale_1pct") if isinstance(line, Found)]
    state = campaign(tmp_path, "impostor:scale_1pct", examples=5)
    assert before
    assert {str(line.key) for line in before} <= set(state.faults)
    assert all(fault.reduced is not None for fault in state.faults.values())


def test_lanes_end_when_the_main_process_is_killed(tmp_path: Path) -> None:
    process = started(tmp_path, "numpy_tiled", jobs=2)
    process.kill()
    process.wait()
    time.sleep(4)
    size = log_path(tmp_path, "numpy_tiled").stat().st_size
    time.sleep(2.5)
    assert log_path(tmp_path, "numpy_tiled").stat().st_size == size


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_campaign_in_order(tmp_path: Path, number: signal.Signals) -> None:
    process = started(tmp_path, "numpy_tiled", jobs=1)
    process.send_signal(number)
    assert process.wait(timeout=30) == 5


def test_a_resumed_campaign_goes_on_where_it_stood(tmp_path: Path) -> None:
    first = campaign(tmp_path, "numpy_tiled", examples=20, seconds=None)
    second = campaign(tmp_path, "numpy_tiled", examples=20, seconds=None)
    assert second.examples == 40
    assert second.positions[0, 0].grid > first.positions[0, 0].grid
    assert second.coverage.covered > first.coverage.covered


def test_an_unfinished_minimisation_is_taken_up_again(tmp_path: Path) -> None:
    found = Found(
        check="forward", status="NUMERICAL", tensor="out", pattern="all zeros", candidate="impostor:zeros",
        case_id="attn1:b=2,sq=17,sk=33,h=2,d=8,dtype=fp16,recipe=normal,seed=1", source="grid", examples=1, seconds=1.0,
    )  # fmt: skip
    log = CampaignLog(log_path(tmp_path, "impostor:zeros"))
    log.append(found)
    log.close()
    (fault,) = campaign(tmp_path, "impostor:zeros").faults.values()
    assert fault.case_id.startswith("attn1:b=1,sq=1,sk=1,h=1,d=1")


def test_an_earlier_fault_that_passes_now_is_gone(tmp_path: Path) -> None:
    case_id = "attn1:b=1,sq=2,sk=3,h=1,d=8,dtype=fp32,recipe=normal,seed=1"
    log = CampaignLog(log_path(tmp_path, "numpy_tiled"))
    fact = {"check": "forward", "status": "NUMERICAL", "tensor": "out", "pattern": "elements"}
    log.append(
        Found(**fact, case_id=case_id, candidate="numpy_tiled", source="grid", examples=1, seconds=0.0)  # type: ignore[arg-type]
    )
    log.close()
    state = campaign(tmp_path, "numpy_tiled", examples=5)
    assert state.faults == {}
    assert any(isinstance(line, Gone) for line in lines_of(tmp_path, "numpy_tiled"))


def test_a_torn_line_is_left_out_and_the_next_one_is_whole(tmp_path: Path) -> None:
    path = log_path(tmp_path, "numpy_tiled")
    path.parent.mkdir(parents=True)
    path.write_bytes(b'{"type":"gone","fault":"a","case_id":"b"}\n{"type":"reduced","fau')
    log = CampaignLog(path)
    log.append(Reduced(fault="c", case_id="d", candidate="e", calls=1, seconds=0.0, complete=True))
    assert [type(line) for line in log.new_lines()] == [Gone, Reduced]
