"""Sessions on the hostile candidates and small calls to send them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from verify.candidate import Call
from verify.problem import AttentionProblem
from verify.worker import InProcessSession, Outcome, ProcessSession
from verify.worker.session import Session

LOADER = "hostile_candidates:hostile"
Ask = Callable[..., Outcome]


def make_call(seed: int = 0, **replaced: Any) -> Call:
    problem = AttentionProblem(batch=2, seqlen_q=4, seqlen_k=4, head_dim=8, head_dim_v=8)
    random = np.random.default_rng(5)
    arrays = {name: random.standard_normal((2, 4, 1, 8)).astype(np.float32) for name in ("q", "k", "v")}
    return Call(problem=problem, arrays=arrays | replaced, backward=True, seed=seed)


@pytest.fixture(scope="session")
def hostile() -> Iterator[Any]:
    """The module of hostile candidates, importable by workers too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parent))
        import hostile_candidates

        yield hostile_candidates
        sys.modules.pop("hostile_candidates")


@pytest.fixture(scope="session")
def worker_session(hostile: Any) -> Iterator[ProcessSession]:
    """One session that all tests of a process share: each act must leave it fit for the next."""
    with ProcessSession(LOADER, timeout_s=20.0, memory_limit_bytes=256 << 20) as session:
        yield session


@pytest.fixture(scope="session")
def hasty_session(hostile: Any) -> Iterator[ProcessSession]:
    """One with a short deadline, for candidates that never answer."""
    with ProcessSession(LOADER, timeout_s=1.0) as session:
        yield session


@pytest.fixture(params=["worker", "in-process"])
def session(request: pytest.FixtureRequest, hostile: Any) -> Session:
    """Either kind of session: what does not kill the process must come out the same."""
    if request.param == "worker":
        found: ProcessSession = request.getfixturevalue("worker_session")
        return found
    return InProcessSession(hostile.hostile)


@pytest.fixture
def act(hostile: Any) -> Callable[[str], Call]:
    """Call that asks for an act by name."""
    return lambda name: make_call(hostile.seed_of(name))


@pytest.fixture
def assert_honest(hostile: Any) -> Callable[[Session], None]:
    """Check that an honest call on the session gives the bits of a plain function call."""

    def check(session: Session) -> None:
        call = make_call()
        outcome = session.call(call)
        assert outcome.reply is not None, outcome
        expected = hostile.honest(call).outputs
        assert {name: array.tobytes() for name, array in outcome.reply.outputs.items()} == {
            name: array.tobytes() for name, array in expected.items()
        }

    return check
