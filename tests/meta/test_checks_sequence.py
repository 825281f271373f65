"""Sequence: answers that depend on earlier calls are found; honest kernels pass."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.meta.running import HONEST, Fault, Faulty, Outputs, case_of, finding_of
from verify.candidate import Call
from verify.verdict import Status

NAME = "sequence"


@pytest.mark.parametrize("candidate", HONEST)
def test_honest_kernels_pass(candidate: str) -> None:
    finding = finding_of(NAME, candidate, case_of(causal=True))
    assert finding.status is Status.PASS, finding.reasons


def remembering(key: Callable[[Call], object]) -> Fault:
    """A cache that is right only while equal keys mean equal calls."""
    cache: dict[object, Outputs] = {}

    def fault(honestly: Callable[[Call], Outputs], call: Call) -> Outputs:
        return cache.setdefault((key(call), call.backward), honestly(call))

    return fault


def by_shape(call: Call) -> object:
    return repr([(name, array.shape) for name, array in call.arrays.items()])


def by_pointer(call: Call) -> object:
    q = call.arrays["q"]
    return q.ctypes.data, q.strides, str(q.dtype), call.problem


@pytest.mark.parametrize("key", [by_shape, by_pointer])
def test_a_result_cached_by_shape_or_by_pointer_is_rejected(key: Callable[[Call], object]) -> None:
    finding = finding_of(NAME, Faulty(remembering(key)), case_of())
    assert finding.status is Status.NUMERICAL
    assert any("same storage, new values" in reason for reason in finding.reasons)


def keeps_the_first_mask(honestly: Callable[[Call], Outputs], call: Call) -> Outputs:
    """A compiled variant chosen once by shape: later masks are ignored."""
    return honestly(replace(call, problem=replace(call.problem, causal=False)))


def test_a_mask_frozen_by_the_first_call_is_rejected() -> None:
    finding = finding_of(NAME, Faulty(keeps_the_first_mask), case_of())
    assert any("after it, other mask" in reason for reason in finding.reasons)


def drifting() -> Fault:
    """A workspace that is not cleared: the last bits of lse depend on how many calls there were."""
    calls: list[Call] = []

    def fault(honestly: Callable[[Call], Outputs], call: Call) -> Outputs:
        calls.append(call)
        outputs = honestly(call)
        return outputs | {"lse": outputs["lse"] * np.float32(1.0 + 2.0**-23 * min(len(calls) - 1, 1))}

    return fault


def test_bits_that_depend_on_earlier_calls_are_rejected() -> None:
    finding = finding_of(NAME, Faulty(drifting()), case_of())
    assert finding.status is Status.NONDETERMINISTIC
    assert finding.reasons == ("lse: other bits after calls with other strides, dtypes and masks",)
