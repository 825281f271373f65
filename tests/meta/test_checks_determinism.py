"""Determinism: bits that depend on the calls before are found; what is declared not to repeat is not judged."""

from collections.abc import Callable
from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from tests.meta.running import HONEST, Faulty, Outputs, case_of, finding_of
from verify.candidate import Call
from verify.verdict import Status

NAME = "determinism"
OUTPUTS = ("out", "lse", "dq", "dk", "dv")


@pytest.mark.parametrize("candidate", HONEST)
def test_honest_kernels_pass(candidate: str) -> None:
    assert finding_of(NAME, candidate, case_of(dtype="bf16", causal=True)).status is Status.PASS


def last_bit(name: str) -> Faulty:
    """One output whose last bit depends on how many calls there were."""
    calls = count()

    def fault(honestly: Callable[[Call], Outputs], call: Call) -> Outputs:
        outputs = honestly(call)
        if next(calls) % 2 == 0 or name not in outputs:
            return outputs
        return outputs | {name: np.nextafter(outputs[name], np.float32(9))}

    return Faulty(fault)


def test_bits_that_alternate_by_pairs_of_calls_pass_unseen_and_others_do_not() -> None:
    """A, B, A: the third call is compared with the first, so an error of every second call is the same in both."""
    assert finding_of(NAME, last_bit("out"), case_of()).status is Status.PASS


@pytest.mark.parametrize("name", OUTPUTS)
def test_one_output_that_remembers_the_call_before_is_rejected_by_name(name: str) -> None:
    before: list[np.ndarray] = []

    def fault(honestly: Callable[[Call], Outputs], call: Call) -> Outputs:
        outputs = honestly(call)
        stale = bool(before) and not np.array_equal(before[-1], call.arrays["q"])
        before.append(call.arrays["q"].copy())
        return outputs | {name: np.nextafter(outputs[name], np.float32(9)) if stale else outputs[name]}

    finding = finding_of(NAME, Faulty(fault), case_of())
    assert finding.status is Status.NONDETERMINISTIC
    assert finding.reasons == (f"{name}: other bits when called again after a different call",)


def test_what_is_not_declared_deterministic_is_not_judged() -> None:
    candidate = last_bit("out")
    able = replace(candidate.contract.capabilities, deterministic=False)
    candidate.contract = replace(candidate.contract, capabilities=able)
    assert finding_of(NAME, candidate, case_of()).status is Status.UNSUPPORTED
