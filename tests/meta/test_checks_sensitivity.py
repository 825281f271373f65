"""Sensitivity: an argument that is ignored is found by name; honest kernels pass every feature."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.meta.running import HONEST, Fault, Faulty, Outputs, case_of, finding_of, run_of
from tests.verify.candidates.asking import FEATURES
from verify.candidate import Call
from verify.checks import CHECKS
from verify.verdict import Status

NAME = "sensitivity"


@pytest.mark.parametrize("feature", [name for name in FEATURES if name not in ("no_keys", "no_rows")])
def test_the_emulation_passes_every_feature(feature: str) -> None:
    finding = finding_of(NAME, "numpy_tiled", case_of(**FEATURES[feature]))
    assert finding.status is Status.PASS, finding.reasons


@pytest.mark.parametrize("candidate", HONEST)
def test_honest_kernels_pass(candidate: str) -> None:
    finding = finding_of(NAME, candidate, case_of(**FEATURES["ragged"]))
    assert finding.status is Status.PASS, finding.reasons


def frozen(**fields: Any) -> Fault:
    """The fields are those of the first build, whatever the call asks."""

    def fault(honestly: Callable[[Call], Outputs], call: Call) -> Outputs:
        return honestly(replace(call, problem=replace(call.problem, **fields)))

    return fault


@pytest.mark.parametrize(
    ("argument", "case", "ignored"),
    [
        ("softmax_scale", {}, {"softmax_scale": 8**-0.5}),
        ("causal", {"causal": True}, {"causal": True}),
        ("alignment", {"causal": True}, {"alignment": "bottom_right"}),
        ("window", {"window": (3, 2)}, {"window": (3, 2)}),
        ("softcap", {"softcap": 2.0}, {"softcap": 2.0}),
    ],
)
def test_an_ignored_argument_is_rejected_by_name(argument: str, case: dict[str, Any], ignored: dict[str, Any]) -> None:
    finding = finding_of(NAME, Faulty(frozen(**ignored)), case_of(**case))
    assert finding.status is Status.NUMERICAL
    assert all(reason.startswith(f"{argument} changed") for reason in finding.reasons)


def test_an_ignored_gradient_of_lse_is_rejected() -> None:
    def fault(honestly: Callable[[Call], Outputs], call: Call) -> Outputs:
        return honestly(replace(call, with_dlse=False))

    finding = finding_of(NAME, Faulty(fault), case_of(seed=3))
    assert any(reason.startswith("dlse changed") for reason in finding.reasons)


def test_a_page_table_that_is_read_once_is_rejected() -> None:
    """Two pages that become one change every sum over keys; a kernel that keeps its first table does not see it."""
    seen: list[Any] = []

    def fault(honestly: Callable[[Call], Outputs], call: Call) -> Outputs:
        seen.append(call.arrays["page_table"].copy())
        return honestly(replace(call, arrays={**call.arrays, "page_table": seen[0]}))

    candidate = Faulty(fault)
    run = run_of(candidate, case_of(**FEATURES["paged"]))
    run.first_outcome()
    finding = CHECKS[NAME].run(run)
    assert any(reason.startswith("page_table changed") for reason in finding.reasons)


def test_a_dropout_mask_that_ignores_the_seed_is_rejected() -> None:
    def fault(honestly: Callable[[Call], Outputs], call: Call) -> Outputs:
        return honestly(replace(call, seed=0))

    dropping = case_of(dropout_p=0.3)
    assert finding_of(NAME, "cuda_tiled", dropping).status is Status.PASS
    finding = finding_of(NAME, Faulty(fault, "cuda_tiled"), dropping)
    assert "seed changed: the same dropout mask" in finding.reasons


@pytest.mark.parametrize(
    ("argument", "feature"),
    [
        ("mask", "boolean"),
        ("block_mask", "block_sparse"),
        ("bias", "bias"),
        ("alibi_slopes", "alibi"),
        ("sink", "sink"),
        ("cu_seqlens_k", "ragged"),
        ("cu_seqlens_q", "ragged"),
        ("seqlens_k", "lengths"),
    ],
)
def test_an_array_that_is_read_once_is_rejected_by_name(argument: str, feature: str) -> None:
    case = case_of(**FEATURES[feature])
    run = run_of("numpy_tiled", case)
    own = run.facts.inputs.arrays[argument].copy()
    length: dict[str, Any] = {
        name: getattr(case.problem, name) for name in (argument, "seqlen_q", "seqlen_k") if "seqlens" in argument
    }

    def fault(honestly: Callable[[Call], Outputs], call: Call) -> Outputs:
        if call.arrays[argument].shape != own.shape:
            return honestly(call)
        problem = replace(call.problem, **length) if length else call.problem
        return honestly(replace(call, problem=problem, arrays={**call.arrays, argument: own}))

    finding = finding_of(NAME, Faulty(fault), case)
    assert any(reason.startswith(f"{argument} changed") for reason in finding.reasons)
