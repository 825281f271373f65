"""Equivalence: an argument that changes something when it should change nothing is found; honest kernels pass."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.meta.running import HONEST, Faulty, Outputs, case_of, finding_of
from tests.verify.candidates.asking import FEATURES
from verify.candidate import Call
from verify.problem import AttentionProblem
from verify.verdict import Status

NAME = "equivalence"


@pytest.mark.parametrize("feature", [name for name in FEATURES if name not in ("no_keys", "no_rows")])
def test_the_emulation_passes_every_feature(feature: str) -> None:
    finding = finding_of(NAME, "numpy_tiled", case_of(**FEATURES[feature]))
    assert finding.status is Status.PASS, finding.reasons


@pytest.mark.parametrize("candidate", [*HONEST, "torch_flash"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("fields", [{}, {"causal": True, "seqlen_k": 18}])
def test_honest_kernels_pass(candidate: str, dtype: str, fields: dict[str, Any]) -> None:
    finding = finding_of(NAME, candidate, case_of(dtype=dtype, **fields))
    assert finding.status is Status.PASS, finding.reasons


SQUARE: dict[str, Any] = {"seqlen_k": 18, "causal": True}


@pytest.mark.parametrize(
    ("label", "condition", "fields"),
    [
        ("window over everything", lambda p: p.window is not None and p.window[0] > 20, {}),
        ("mask that hides nothing", lambda p: p.pattern == "boolean", {}),
        ("blocks that hide nothing", lambda p: p.pattern == "block_sparse", {}),
        ("bias of 0", lambda p: p.bias == "additive", {}),
        ("slopes of 0", lambda p: p.bias == "alibi", {}),
        ("sink without weight", lambda p: p.sink, {}),
        ("lengths that leave no padding", lambda p: p.seqlens_k is not None, {}),
        ("packed", lambda p: p.is_ragged, {}),
        ("prefix", lambda p: p.seqlen_q == 9, SQUARE),
        ("last rows", lambda p: p.seqlen_q == 12, SQUARE),
        ("8 zero columns", lambda p: p.head_dim == 16, {}),
        ("window of one key", lambda p: p.window == (0, 0), {"seqlen_k": 18}),
    ],
)
def test_a_call_that_is_wrong_in_one_guise_is_rejected(
    label: str, condition: Callable[[AttentionProblem], bool], fields: dict[str, Any]
) -> None:
    def fault(honestly: Callable[[Call], Outputs], call: Call) -> Outputs:
        outputs = honestly(call)
        if condition(call.problem):
            outputs["out"] = outputs["out"] * np.float32(1.01)
        return outputs

    finding = finding_of(NAME, Faulty(fault), case_of(**fields))
    assert finding.status is Status.NUMERICAL
    assert all(reason.startswith(label) for reason in finding.reasons)


def test_a_paged_case_is_compared_with_other_arguments_alone() -> None:
    assert finding_of(NAME, "numpy_tiled", case_of(**FEATURES["paged"])).status is Status.PASS
