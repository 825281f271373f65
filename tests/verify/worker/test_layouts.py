"""The inputs of real cases reach a candidate in the layout that they have here, and its answer has the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from verify.candidate import Call
from verify.candidates import load
from verify.case import Case, Recipe
from verify.inputs import make_inputs
from verify.problem import EVERY_LAYOUT, AttentionProblem
from verify.verdict import Status
from verify.worker import InProcessSession, ProcessSession


def call_of(seed: int = 0, **fields: Any) -> Call:
    sizes = {"batch": 2, "seqlen_q": 5, "seqlen_k": 5, "nheads": 2, "nheads_kv": 2, "head_dim": 16, "head_dim_v": 16}
    problem = AttentionProblem(**sizes | fields)
    inputs = make_inputs(Case(problem=problem, recipe=Recipe.of("normal"), seed=3))
    return Call(problem=problem, arrays=inputs.arrays, backward=True, seed=seed)


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("layout", EVERY_LAYOUT)
def test_strides_and_alignment_are_those_of_the_case(
    layout: str, dtype: str, worker_session: ProcessSession, hostile: Any
) -> None:
    call = call_of(hostile.seed_of("report_views"), layout=layout, dtype=dtype)
    outcome = worker_session.call(call)
    expected = hostile.report_views(call).outputs
    assert outcome.reply is not None, outcome
    assert {name: array.tolist() for name, array in outcome.reply.outputs.items()} == {
        name: array.tolist() for name, array in expected.items()
    }


@pytest.fixture(scope="module")
def tiled_session() -> Any:
    with ProcessSession("numpy_tiled", timeout_s=60.0) as session:
        yield session


@pytest.mark.parametrize(
    "fields",
    [
        *({"layout": layout, "dtype": "bf16"} for layout in EVERY_LAYOUT),
        {"dtype": "fp16", "causal": True, "window": (2, None)},
        {"nheads": 4, "bias": "additive", "softcap": 5.0, "sink": True},
        {"seqlen_q": 0},
        {"seqlen_k": 0},
        {"cu_seqlens_q": (0, 5, 5), "cu_seqlens_k": (0, 2, 7)},
        {"seqlens_k": (3, 5), "page_size": 2, "seqlen_k": 6},
    ],
    ids=str,
)
def test_worker_and_own_process_give_the_same_bits(fields: dict[str, Any], tiled_session: ProcessSession) -> None:
    call = call_of(**fields)
    there, here = tiled_session.call(call), InProcessSession(load("numpy_tiled")).call(call)
    assert there.status is here.status is Status.PASS, (there, here)
    assert there.reply is not None
    assert here.reply is not None
    assert there.reply.route == here.reply.route
    assert there.reply.outputs.keys() == here.reply.outputs.keys()
    for name, array in there.reply.outputs.items():
        assert (array.dtype, array.shape) == (here.reply.outputs[name].dtype, here.reply.outputs[name].shape)
        assert np.array_equal(array.view(np.uint8), here.reply.outputs[name].view(np.uint8))
    assert there.mutated_inputs == there.changed_gaps == ()
