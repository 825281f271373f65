"""What crosses the boundary arrives bit for bit, and what the candidate did to its inputs is seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from verify.candidate import Array, Call, Reply
from verify.problem import AttentionProblem
from verify.verdict import Status
from verify.worker import Outcome, ProcessSession, Session

Act = Callable[[str], Call]
Check = Callable[[Session], None]


def _ran(outcome: Outcome) -> Reply:
    assert outcome.status is Status.PASS, outcome
    assert outcome.reply is not None
    return outcome.reply


def test_overwritten_input_is_named(session: Session, act: Act, assert_honest: Check) -> None:
    call = act("overwrite_input")
    before = call.arrays["k"].copy()
    outcome = session.call(call)
    assert (outcome.status, outcome.mutated_inputs, outcome.changed_gaps) == (Status.PASS, ("k",), ())
    assert np.array_equal(call.arrays["k"], before)
    assert_honest(session)


def test_views_of_inputs_come_back_as_copies(session: Session, act: Act) -> None:
    call = act("return_views")
    got = _ran(session.call(call)).outputs
    expected = {"dq": call.arrays["q"], "dk": call.arrays["q"][:, ::2].T, "dv": [call.arrays["v"][0]] * 3}
    assert got["dq"].flags.owndata
    assert got["dq"].flags.writeable
    for name, array in expected.items():
        np.testing.assert_array_equal(got[name], array)


def test_wrong_shapes_dtypes_and_names_are_left_to_the_checks(session: Session, act: Act) -> None:
    got = _ran(session.call(act("return_wrong_content"))).outputs
    described = {name: (array.shape, array.dtype.name) for name, array in got.items()}
    assert described == {"out": ((2, 3), "int16"), "surprise": ((), "float64"), "dk": ((0, 4), "float64")}


def test_nan_payloads_survive(session: Session, act: Act) -> None:
    call = act("return_nan_payloads")
    call.arrays["q"].view(np.uint32)[0, 0, 0] = 0x7FABCDEF
    got = _ran(session.call(call)).outputs
    assert got["out"].view(np.uint16).tolist() == [0x7FA1, 0xFFC3, 0x8000]
    assert got["lse"].view(np.uint32).tolist() == [0x80000000, 0xFFC12345, 0x7F800001]
    assert got["same"].tobytes() == call.arrays["q"].tobytes()


def test_unwritten_memory_is_no_zero_and_no_earlier_answer(worker_session: ProcessSession, act: Act) -> None:
    for _ in range(2):
        got = _ran(worker_session.call(act("leave_unwritten"))).outputs
        assert {bytes(set(array.tobytes())) for array in got.values()} == {b"\x7f"}


def test_route_and_names_arrive(session: Session, act: Act, hostile: Any) -> None:
    assert _ran(session.call(act("print_garbage"))).route == hostile.ROUTE


def test_printing_is_captured_not_parsed(worker_session: ProcessSession, act: Act) -> None:
    outcome = worker_session.call(act("print_garbage"))
    _ran(outcome)
    assert outcome.output.endswith("to stdout\nto stderr\n")
    assert worker_session.call(act("report_state")).output == ""


def test_flood_on_stdout_keeps_only_its_tail(worker_session: ProcessSession, act: Act, assert_honest: Check) -> None:
    outcome = worker_session.call(act("print_50_megabytes"))
    _ran(outcome)
    assert outcome.output.endswith("the end\n")
    assert len(outcome.output) <= 1 << 16
    assert_honest(worker_session)


def test_patched_functions_are_noted_and_put_back(session: Session, act: Act) -> None:
    notes = session.call(act("patch_numpy")).notes
    assert set(notes) == {"changed numpy.allclose", "changed numpy error handling", "changed working directory"}
    assert not np.allclose(1.0, 2.0)
    assert not _ran(session.call(act("report_state"))).outputs["patched"]


def test_worker_survives_what_is_no_fault(worker_session: ProcessSession, act: Act) -> None:
    def pid() -> int:
        return int(_ran(worker_session.call(act("report_state"))).outputs["pid"])

    first = pid()
    for name in ("raise_error", "refuse", "overwrite_input", "return_list", "break_collector"):
        worker_session.call(act(name))
    assert pid() == first


@pytest.mark.parametrize("rows", [1, 3000, 40, 100_000])
def test_memory_grows_with_the_call(rows: int, session: Session, hostile: Any) -> None:
    arrays: dict[str, Array] = {name: np.full((1, rows, 1, 8), len(name), np.float32) for name in ("q", "k", "v")}
    problem = AttentionProblem(seqlen_q=rows, seqlen_k=rows, head_dim=8, head_dim_v=8)
    call = Call(problem=problem, arrays=arrays, backward=True)
    got = _ran(session.call(call)).outputs
    assert all(np.array_equal(got[f"d{name}"], -arrays[name]) for name in arrays)
