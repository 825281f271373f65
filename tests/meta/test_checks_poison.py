"""Poison: a kernel that reads padding is found even where its own fault is finite; honest kernels pass."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.meta.running import HONEST, Faulty, Outputs, case_of, finding_of
from verify.candidate import Call
from verify.verdict import Status

NAME = "poison"
PADDED: dict[str, Any] = {"seqlens_k": (7, 20)}


@pytest.mark.parametrize("candidate", HONEST)
@pytest.mark.parametrize("fields", [PADDED, {"layout": "sliced"}])
def test_honest_kernels_pass(candidate: str, fields: dict[str, Any]) -> None:
    finding = finding_of(NAME, candidate, case_of(**fields))
    assert finding.status is Status.PASS, finding.reasons


def test_unused_pages_are_judged() -> None:
    assert finding_of(NAME, "numpy_tiled", case_of(**PADDED, page_size=4)).status is Status.PASS


def reads_padding(honestly: Callable[[Call], Outputs], call: Call) -> Outputs:
    """A guard that drops NaN and infinities lets finite padding through."""
    outputs = honestly(call)
    beyond = float(call.arrays["v"][0, -1, 0, 0])
    leaked = np.float32(1e-33 * beyond if np.isfinite(beyond) else 0.0)
    return outputs | {"out": outputs["out"] + leaked}


def test_finite_padding_that_enters_out_is_rejected() -> None:
    finding = finding_of(NAME, Faulty(reads_padding), case_of(**PADDED))
    assert finding.status is Status.OUT_OF_BOUNDS
    assert finding.reasons == ("out: other bits when unused memory holds 1e30 instead of nan",)


def test_a_case_without_unused_memory_is_not_judged() -> None:
    assert finding_of(NAME, "numpy_tiled", case_of()).status is Status.UNSUPPORTED


@pytest.mark.parametrize("poison", [np.inf, 0.0])
def test_unused_memory_that_decides_is_rejected_whatever_it_holds(poison: float) -> None:
    def fault(honestly: Callable[[Call], Outputs], call: Call) -> Outputs:
        outputs = honestly(call)
        leaked = np.float32(1e-6 if call.arrays["v"][0, -1, 0, 0] == poison else 0.0)
        return outputs | {"out": outputs["out"] + leaked}

    finding = finding_of(NAME, Faulty(fault), case_of(**PADDED))
    assert finding.status is Status.OUT_OF_BOUNDS
