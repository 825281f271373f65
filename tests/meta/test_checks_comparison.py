"""Forward, lse and backward: each output is judged by itself, by name and within its own bound."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.meta.running import HONEST, Fault, Faulty, Outputs, case_of, finding_of
from tests.verify.candidates.asking import FEATURES
from verify.candidate import Call
from verify.verdict import Status

OWNERS = {"out": "forward", "lse": "lse"} | dict.fromkeys(("dq", "dk", "dv", "dbias", "dsink"), "backward")
EVERYTHING = {"bias": "additive", "sink": True}


@pytest.mark.parametrize("candidate", HONEST)
@pytest.mark.parametrize("check", ["forward", "lse", "backward"])
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_honest_kernels_pass(candidate: str, check: str, dtype: str) -> None:
    finding = finding_of(check, candidate, case_of(dtype=dtype, **EVERYTHING))
    assert finding.status is Status.PASS, finding.reasons
    assert finding.comparisons


def off(name: str, factor: float) -> Fault:
    def fault(honestly: Callable[[Call], Outputs], call: Call) -> Outputs:
        outputs = honestly(call)
        if name in outputs:
            outputs[name] = outputs[name] * np.float32(factor)
        return outputs

    return fault


@pytest.mark.parametrize("name", OWNERS)
def test_one_wrong_output_is_rejected_by_its_own_check_alone(name: str) -> None:
    case = case_of(**EVERYTHING)
    findings = {check: finding_of(check, Faulty(off(name, 1.001)), case) for check in ("forward", "lse", "backward")}
    assert {check for check, finding in findings.items() if finding.status.is_failure} == {OWNERS[name]}
    assert [c.tensor for c in findings[OWNERS[name]].comparisons if not c.accepted] == [name]


@pytest.mark.parametrize("name", OWNERS)
def test_an_error_of_one_rounding_is_accepted(name: str) -> None:
    finding = finding_of(OWNERS[name], Faulty(off(name, 1.0 + 2.0**-23)), case_of(**EVERYTHING))
    assert finding.status is Status.PASS, finding.reasons


@pytest.mark.parametrize(("seed", "status"), [(3, Status.NUMERICAL), (2, Status.PASS)])
def test_an_ignored_gradient_of_lse_is_rejected_on_odd_seeds(seed: int, status: Status) -> None:
    def fault(honestly: Callable[[Call], Outputs], call: Call) -> Outputs:
        return honestly(replace(call, with_dlse=False))

    assert finding_of("backward", Faulty(fault), case_of(seed=seed)).status is status


def test_the_gradients_of_a_group_that_are_not_summed_are_rejected() -> None:
    finding = finding_of("backward", Faulty(off("dk", 0.5)), case_of(**FEATURES["gqa"]))
    assert finding.reasons[0].startswith("dk")


def test_an_output_that_is_not_declared_is_not_judged() -> None:
    candidate = Faulty(off("out", 1.0))
    outputs = frozenset({"out", "dq", "dk", "dv"})
    able = replace(candidate.contract.capabilities, outputs=outputs)
    candidate.contract = replace(candidate.contract, capabilities=able)
    assert finding_of("lse", candidate, case_of()).status is Status.UNSUPPORTED
