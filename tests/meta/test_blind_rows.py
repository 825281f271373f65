"""A candidate that declares no rows without keys is never judged on one, also not by checks that vary the problem."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.meta.running import Faulty, Outputs, finding_of
from verify.candidate import Call
from verify.case import Case
from verify.oracle import reference_outputs
from verify.verdict import Status

CASES = (
    "attn1:b=1,sq=2,sk=1,h=1,d=1,dtype=fp32,recipe=pinned:dout=0:k=0:q=0:v=1,seed=0",
    "attn1:b=1,sq=2,sk=1,h=1,d=1,dtype=fp32,causal=1,align=top_left,recipe=pinned:dout=0:k=0:q=0:v=1,seed=0",
    "attn1:b=1,sq=11,sk=2,h=1,d=1,dtype=fp32,pattern=boolean,recipe=pinned:dout=0:k=0:q=0:v=0~1,seed=7001075",
)


def _nan_without_keys(honestly: Callable[[Call], Outputs], call: Call) -> Outputs:
    lse = reference_outputs(call.problem, call.arrays, backward=False).outputs["lse"]
    blind = np.isneginf(lse).swapaxes(-1, -2)
    outputs = honestly(call)
    return outputs | {"out": np.where(blind[..., None], np.nan, outputs["out"]).astype(outputs["out"].dtype)}


@pytest.mark.parametrize("check", ["sequence", "sensitivity", "metamorphic", "invariance", "probes", "equivalence"])
@pytest.mark.parametrize("case_id", CASES)
def test_undeclared_rows_are_not_judged(check: str, case_id: str) -> None:
    candidate = Faulty(_nan_without_keys)
    able = replace(candidate.contract.capabilities, fully_masked_rows=False)
    candidate.contract = replace(candidate.contract, capabilities=able)
    finding = finding_of(check, candidate, Case.parse(case_id))
    assert finding.status in (Status.PASS, Status.UNSUPPORTED), finding.reasons
