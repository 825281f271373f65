"""Contract: absent, misshapen and mistyped outputs and touched inputs are told apart; honest kernels pass."""

from collections.abc import Callable

import numpy as np
import pytest

from tests.meta.running import HONEST, Fault, Faulty, Outputs, case_of, finding_of
from tests.verify.candidates.asking import FEATURES
from verify.candidate import Call, RefusedError
from verify.verdict import Status

NAME = "contract"


@pytest.mark.parametrize("candidate", HONEST)
@pytest.mark.parametrize("feature", ["plain", "ragged", "bias", "sink", "no_keys"])
def test_honest_kernels_pass(candidate: str, feature: str) -> None:
    finding = finding_of(NAME, candidate, case_of(dtype="bf16", **FEATURES[feature]))
    assert finding.status is Status.PASS, finding.reasons


def without(name: str) -> Fault:
    return lambda honestly, call: {key: array for key, array in honestly(call).items() if key != name}


def reshaped(name: str) -> Fault:
    def fault(honestly: Callable[[Call], Outputs], call: Call) -> Outputs:
        outputs = honestly(call)
        return outputs | {name: outputs[name].swapaxes(-1, -2)}

    return fault


def widened(name: str) -> Fault:
    def fault(honestly: Callable[[Call], Outputs], call: Call) -> Outputs:
        outputs = honestly(call)
        return outputs | {name: outputs[name].astype(np.float64)}

    return fault


@pytest.mark.parametrize("name", ["out", "lse", "dq", "dk", "dv"])
@pytest.mark.parametrize(
    ("fault", "status"), [(without, Status.SHAPE), (reshaped, Status.SHAPE), (widened, Status.DTYPE)]
)
def test_an_output_that_is_not_as_declared_is_rejected_by_name(
    name: str, fault: Callable[[str], Fault], status: Status
) -> None:
    finding = finding_of(NAME, Faulty(fault(name)), case_of())
    assert finding.status is status
    assert finding.reasons[0].startswith(name)


@pytest.mark.parametrize(("name", "feature"), [("k", "plain"), ("cu_seqlens_k", "ragged"), ("page_table", "paged")])
def test_an_input_that_is_written_is_rejected_by_name(name: str, feature: str) -> None:
    def fault(honestly: Callable[[Call], Outputs], call: Call) -> Outputs:
        outputs = honestly(call)
        call.arrays[name][(0,) * call.arrays[name].ndim] += 1
        return outputs

    finding = finding_of(NAME, Faulty(fault), case_of(**FEATURES[feature]))
    assert finding.status is Status.MUTATED_INPUT
    assert name in finding.reasons[0]


def test_a_write_into_a_stride_gap_is_out_of_bounds() -> None:
    def fault(honestly: Callable[[Call], Outputs], call: Call) -> Outputs:
        q = call.arrays["q"]
        beyond = np.lib.stride_tricks.as_strided(q[0, 0, -1], (q.shape[-1] + 1,), (q.itemsize,), writeable=True)
        beyond[-1] = 0
        return honestly(call)

    finding = finding_of(NAME, Faulty(fault), case_of(layout="sliced"))
    assert finding.status is Status.OUT_OF_BOUNDS


def test_a_declared_case_that_is_refused_is_a_failure() -> None:
    def fault(honestly: Callable[[Call], Outputs], call: Call) -> Outputs:
        raise RefusedError("not today")

    finding = finding_of(NAME, Faulty(fault), case_of())
    assert (finding.status, finding.reasons[0]) == (Status.REFUSED, "not today")
