"""Aggregate: errors within every element's bound that all point one way are found; honest roundings pass."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.meta.running import HONEST, Faulty, Outputs, case_of, finding_of
from verify.candidate import Call
from verify.case import Case
from verify.verdict import Status

NAME = "aggregate"
LARGE: dict[str, Any] = {"seqlen_q": 64, "seqlen_k": 96, "head_dim": 32, "dtype": "bf16"}


@pytest.mark.parametrize("candidate", HONEST)
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_honest_kernels_pass(candidate: str, dtype: str) -> None:
    finding = finding_of(NAME, candidate, case_of(**(LARGE | {"dtype": dtype})))
    assert (finding.status, finding.reasons) == (Status.PASS, ())


@pytest.mark.parametrize("tensor", ["out", "dq", "dk", "dv"])
def test_truncated_outputs_are_rejected_by_name_though_every_element_is_within_its_bound(tensor: str) -> None:
    """The last place cut off, as a store without rounding does: an error of up to one ulp, always toward zero."""

    def fault(honestly: Callable[[Call], Outputs], call: Call) -> Outputs:
        outputs = honestly(call)
        wide = outputs[tensor].astype(np.float32) * np.float32(1 - 2.0**-9)
        cut = (wide.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
        return outputs | {tensor: cut.astype(outputs[tensor].dtype)}

    finding = finding_of(NAME, Faulty(fault), case_of(**LARGE))
    assert finding.status is Status.NUMERICAL
    assert all(reason.startswith(f"{tensor}:") for reason in finding.reasons)


def test_a_wrong_scale_is_seen_where_q_is_scaled_and_rounded_first() -> None:
    """Bounds of pre-scaled operands are wide; what they allow at random they do not allow as a bias."""

    def fault(honestly: Callable[[Call], Outputs], call: Call) -> Outputs:
        scale = 1.01 * call.problem.softmax_scale
        return honestly(replace(call, problem=replace(call.problem, softmax_scale=scale)))

    finding = finding_of(NAME, Faulty(fault, honest="numpy_tiled:unfused"), case_of(**(LARGE | {"nheads": 4})))
    assert any(reason.startswith("dq: gain") for reason in finding.reasons), finding.reasons


def test_fp32_and_few_elements_are_not_judged() -> None:
    assert finding_of(NAME, "numpy_tiled", case_of(**(LARGE | {"dtype": "fp32"}))).status is Status.UNSUPPORTED
    assert finding_of(NAME, "numpy_tiled", case_of(seqlen_q=2, seqlen_k=2, dtype="bf16")).status is Status.UNSUPPORTED


@pytest.mark.parametrize(
    ("candidate", "case_id"),
    [
        pytest.param(
            "numpy_tiled:split",
            "attn1:b=2,sq=2,sk=150,h=4,hkv=2,d=80,dtype=fp16,scale=0.7,pattern=block_sparse,keep=0.3,block=8x32,"
            "lenk=150+17,recipe=normal,seed=667",
            id="sixteen rows of one error each",
        ),
        pytest.param(
            "numpy_tiled:eager",
            "attn1:b=3,sq=1,sk=142,h=3,d=128,dtype=bf16,lenk=142+15+129,recipe=logits:max=8.0,seed=2",
            id="keys that share the error of a query",
        ),
        pytest.param(
            "numpy_tiled:fast_exp",
            "attn1:b=3,sq=129,sk=3,h=3,d=80,dv=40,dtype=fp16,causal=1,align=top_left,bias=additive,dropout=0.25,"
            "lenk=2+2+3,page=64,layout=sliced,recipe=normal:std=3.0,seed=21003456",
            id="exp of the maximum rounded away",
        ),
        pytest.param(
            "numpy_tiled:fast_exp",
            "attn1:b=3,sq=30,sk=3,h=3,d=80,dv=40,dtype=fp16,recipe=normal:std=3.0,seed=21003456",
            id="rows that one key decides",
        ),
        pytest.param(
            "numpy_tiled:l_rounded",
            "attn1:b=2,sq=6,sk=65,h=9,hkv=3,d=16,dtype=bf16,causal=1,softcap=1.0,sink=1,recipe=normal:std=3.0,seed=1317",
            id="a row sum of rounded weights reaches all keys",
        ),
    ],
)
def test_honest_kernels_that_fuzzing_once_accused_pass(candidate: str, case_id: str) -> None:
    assert not finding_of(NAME, candidate, Case.parse(case_id)).status.is_failure
