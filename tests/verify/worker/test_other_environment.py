"""Candidates of another interpreter that has NumPy and nothing of ours: same bits, same statuses, its own packages."""

from __future__ import annotations

import dataclasses
import subprocess
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from verify.candidate import Call, Route
from verify.contract import Arithmetic, Capabilities, Contract
from verify.errors import UsageError
from verify.problem import AttentionProblem
from verify.verdict import Status
from verify.worker import ProcessSession, candidate_for, plain_protocol, protocol

KERNELS = """
import os, sys
import numpy as np
import kernels
import verify

@verify.register(dtypes=("fp32", "bf16"), returns=("out", "lse"))
def f(q, k, v, softmax_scale, causal=False):
    return q.copy(), np.full((q.shape[0], q.shape[2], q.shape[1]), kernels.ANSWER, np.float32)

def ending(q, k, v, softmax_scale): os._exit(3)
def failing(q, k, v, softmax_scale): raise ValueError("odd tile")
def modules(q, k, v, softmax_scale):
    return np.array([name in sys.modules for name in ("msgspec", "torch", "verify.runner")])
"""
ARRAYS = {"fp32": np.float32, "bf16": ml_dtypes.bfloat16}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A fresh environment with NumPy and a package named like one of ours."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True, with_pip=False)
    packages = next((folder / "lib").glob("python3*")) / "site-packages"
    for source in Path(np.__file__).parents[1].glob("numpy*"):
        (packages / source.name).symlink_to(source)
    (packages / "kernels").mkdir()
    (packages / "kernels" / "__init__.py").write_text("ANSWER = 42\n")
    return str(folder / "bin" / "python")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("user") / "mine.py"
    path.write_text(KERNELS)
    return str(path)


@pytest.fixture(scope="module")
def session(python: str, file: str) -> Iterator[ProcessSession]:
    with ProcessSession(f"{file}::f", timeout_s=60.0, python=python) as opened:
        yield opened


def call(dtype: str = "fp32") -> Call:
    problem = AttentionProblem(batch=2, seqlen_q=4, seqlen_k=4, head_dim=8, head_dim_v=8, dtype=dtype)
    random = np.random.default_rng(5)
    arrays = {name: random.standard_normal((2, 4, 1, 8)).astype(ARRAYS[dtype]) for name in ("q", "k", "v")}
    return Call(problem=problem, arrays=arrays, backward=False)


def test_environment_has_nothing_of_ours(python: str) -> None:
    missing = "import importlib.util as u; print([n for n in ('verify','msgspec','ml_dtypes') if u.find_spec(n)])"
    printed = subprocess.run([python, "-c", missing], cwd="/", capture_output=True, text=True, check=True)
    assert printed.stdout.strip() == "[]"


@pytest.mark.parametrize("dtype", ARRAYS)
def test_outputs_come_back_bit_for_bit(dtype: str, session: ProcessSession) -> None:
    asked = call(dtype)
    outcome = session.call(asked)
    assert outcome.reply is not None, outcome
    out = outcome.reply.outputs["out"]
    assert (out.dtype, out.tobytes()) == (ARRAYS[dtype], asked.arrays["q"].tobytes())


def test_its_package_kernels_is_the_environments(session: ProcessSession) -> None:
    outcome = session.call(call())
    assert outcome.reply is not None, outcome
    assert (outcome.reply.outputs["lse"] == 42).all()


def test_nothing_of_the_judging_side_is_loaded_there(python: str, file: str) -> None:
    with ProcessSession(f"{file}::modules", timeout_s=60.0, python=python) as opened:
        outcome = opened.call(call())
    assert outcome.reply is not None, outcome
    assert not outcome.reply.outputs["out"].any()


@pytest.mark.parametrize(
    ("name", "status", "reason"),
    [("ending", Status.CRASH, "exited with code 3"), ("failing", Status.LAUNCH_ERROR, "ValueError: odd tile")],
)
def test_faults_have_the_same_statuses(name: str, status: Status, reason: str, python: str, file: str) -> None:
    with ProcessSession(f"{file}::{name}", timeout_s=60.0, python=python) as opened:
        outcome = opened.call(call())
    assert outcome.status is status
    assert reason in outcome.message
    assert "verify/worker" not in outcome.traceback


def test_declaration_is_asked_there(python: str, file: str) -> None:
    described = candidate_for(f"{file}::f", python=python)
    assert described.name == f"{file}::f"
    assert described.contract.capabilities.dtypes == {"fp32", "bf16"}
    assert described.contract.arithmetic["bf16"].probs_dtype == "bf16"
    with pytest.raises(UsageError, match=r"nothing:f did not start.*expected one of"):
        candidate_for("nothing:f", python=python)


def messages() -> list[Any]:
    nonce = bytes(range(16))
    route = Route(backend="b", details={"x": "é"})
    output = {"name": "out", "dtype": "float32", "shape": (1, 2**40), "offset": 0}
    contract = Contract(capabilities=Capabilities(dtypes=frozenset({"fp32"})), arithmetic={"fp32": Arithmetic()})
    texts = {"message": "no", "traceback": "", "notes": ("a", "b"), "lost_device": ""}
    described = {"name": "n", "contract": contract, "unavailable": "", "sources": ("/x",)}
    return [
        lambda p: p.Ready(nonce=nonce),
        lambda p: p.Ready(nonce=nonce, described=p.Described(**described)),
        lambda p: p.Ran(nonce=nonce, outputs=(p.OutputSpec(**output),), route=p.route_spec(route), notes=()),
        lambda p: p.Failed(nonce=nonce, status=Status.CRASH, **texts),
    ]


@pytest.mark.parametrize("make", messages())
def test_pure_python_messages_reach_the_strict_parent(make: Any) -> None:
    buffer = protocol.FrameBuffer()
    body = buffer.feed(plain_protocol.encode_frame(make(plain_protocol)))
    assert body is not None
    assert protocol.decode_reply(body, bytes(range(16))) == make(protocol)


def test_requests_reach_the_pure_python_child() -> None:
    spec = {"name": "q", "dtype": "float32", "shape": (2, 300), "strides": (-4, 70000), "offset": 9, "writeable": True}
    problem = AttentionProblem(window=(None, 3), cu_seqlens_q=(0, 16), cu_seqlens_k=(0, 16), softmax_scale=0.1)
    numbers = {"input_bytes": 2**33, "output_limit_bytes": 200, "backward": True, "with_dlse": False, "seed": 2**62}

    def make(p: Any) -> Any:
        return p.Request(nonce=bytes(16), problem=problem, inputs=(p.InputSpec(**spec),), **numbers)

    frame = protocol.encode_frame(make(protocol))
    assert plain_protocol.decode_request(frame[8:]) == make(plain_protocol)
    start = {"nonce": bytes(16), "loader": "x" * 300, "memory_limit_bytes": None}
    frame = protocol.encode_frame(protocol.Start(**start))
    assert plain_protocol.decode_request(frame[8:]) == plain_protocol.Start(**start)


@pytest.mark.parametrize("name", ["InputSpec", "OutputSpec", "Start", "Request", "Ready", "RouteSpec", "Ran", "Failed"])
def test_both_protocols_have_the_same_fields(name: str) -> None:
    plain = tuple(field.name for field in dataclasses.fields(getattr(plain_protocol, name)))
    assert plain == getattr(protocol, name).__struct_fields__


@pytest.mark.parametrize("name", ["MAGIC", "MAX_TEXT", "DESCRIPTORS", "DUMP_SIGNAL"])
def test_both_protocols_have_the_same_constants(name: str) -> None:
    assert getattr(plain_protocol, name) == getattr(protocol, name)


@pytest.mark.parametrize("status", Status)
def test_both_protocols_let_the_same_statuses_be_claimed(status: Status) -> None:
    assert plain_protocol.may_be_claimed(status) == protocol.may_be_claimed(status)
