"""The same case gives the same bits in the caller's process and in a worker."""

from __future__ import annotations

import pytest

from verify.candidate import Call
from verify.candidates import load
from verify.case import Case
from verify.inputs import make_inputs
from verify.worker import InProcessSession, Outcome, ProcessSession

CASES = (
    "attn1:b=2,sq=5,sk=9,h=2,d=16,dtype=fp32,causal=1,seed=1",
    "attn1:b=1,sq=33,sk=65,h=2,d=64,dtype=bf16,layout=sliced,seed=2",
    "attn1:b=1,sq=8,sk=40,h=4,hkv=2,d=32,dtype=fp16,recipe=logits:max=100.0,seed=3",
)


def bits(outcome: Outcome) -> dict[str, bytes]:
    assert outcome.reply is not None, outcome
    return {name: array.tobytes() for name, array in outcome.reply.outputs.items()}


@pytest.mark.parametrize("name", ["numpy_tiled", "torch_flash", "torch_math", "cuda_tiled"])
def test_worker_and_caller_get_the_same_bits(name: str) -> None:
    candidate = load(name)
    if reason := candidate.unavailable():
        pytest.skip(reason)
    with ProcessSession(name, timeout_s=120.0) as worker:
        here = InProcessSession(candidate)
        for case_id in CASES:
            case = Case.parse(case_id)
            call = Call(problem=case.problem, arrays=make_inputs(case).arrays, backward=True, seed=case.seed)
            assert bits(worker.call(call)) == bits(here.call(call)), case_id
