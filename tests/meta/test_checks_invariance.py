"""Invariance: answers that depend on neighbours, places or strides are found; honest kernels pass."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.meta.running import HONEST, Fault, Faulty, Outputs, case_of, finding_of, run_of
from tests.verify.candidates.asking import FEATURES
from verify.candidate import Call
from verify.verdict import Status

NAME = "invariance"
SLIGHTLY = np.float32(1.001)


@pytest.mark.parametrize("feature", [name for name in FEATURES if name not in ("no_keys", "no_rows")])
def test_the_emulation_passes_every_feature(feature: str) -> None:
    finding = finding_of(NAME, "numpy_tiled", case_of(**FEATURES[feature]))
    assert finding.status is Status.PASS, finding.reasons


@pytest.mark.parametrize("candidate", HONEST)
@pytest.mark.parametrize("feature", ["gqa", "causal", "ragged"])
def test_honest_kernels_pass(candidate: str, feature: str) -> None:
    finding = finding_of(NAME, candidate, case_of(dtype="bf16", **FEATURES[feature]))
    assert finding.status is Status.PASS, finding.reasons


LAST_HEAD = run_of("numpy_tiled", case_of()).facts.inputs.arrays["q"][..., -1, :]


def wrong_when(condition: Callable[[Call], bool]) -> Fault:
    """lse off by 0.1 % in calls of one kind."""

    def fault(honestly: Callable[[Call], Outputs], call: Call) -> Outputs:
        outputs = honestly(call)
        return outputs | {"lse": outputs["lse"] * (SLIGHTLY if condition(call) else np.float32(1))}

    return fault


@pytest.mark.parametrize(
    ("label", "condition", "fields"),
    [
        ("sequence 1 alone", lambda call: call.problem.batch == 1, {}),
        ("unchanged", lambda call: call.problem.batch > 1, {}),
        ("layout sliced for bshd", lambda call: call.problem.layout == "sliced", {}),
        ("heads reversed", lambda call: bool((call.arrays["q"][..., 0, :] == LAST_HEAD).all()), {}),
        ("pages moved", lambda call: call.arrays["page_table"][0, 1] % 2 == 0, FEATURES["paged"]),
    ],
)
def test_a_call_that_is_wrong_in_one_guise_is_rejected(
    label: str, condition: Callable[[Call], bool], fields: dict[str, Any]
) -> None:
    finding = finding_of(NAME, Faulty(wrong_when(condition)), case_of(**fields))
    assert finding.status is Status.NUMERICAL
    assert any(reason.startswith((label, "unchanged")) for reason in finding.reasons)


def sees_one_key_too_many(honestly: Callable[[Call], Outputs], call: Call) -> Outputs:
    """`<=` for `<`: the first future key gets a weight of 1e-6 of its own."""
    shifted = replace(call.problem, window=(None, 1), causal=False)
    outputs, ahead = honestly(call), honestly(replace(call, problem=shifted))
    mixed = outputs["out"] + np.float32(1e-6) * (ahead["out"] - outputs["out"])
    return outputs | {"out": mixed.astype(outputs["out"].dtype)}


def test_a_weight_on_the_next_key_is_rejected() -> None:
    finding = finding_of(NAME, Faulty(sees_one_key_too_many), case_of(causal=True))
    assert any(reason.startswith("hidden keys changed: out") for reason in finding.reasons)


def test_another_rounding_in_another_layout_is_accepted() -> None:
    def fault(honestly: Callable[[Call], Outputs], call: Call) -> Outputs:
        outputs = honestly(call)
        ulp = np.float32(1.0 + 2.0**-23 if call.problem.layout == "sliced" else 1.0)
        return outputs | {"out": outputs["out"] * ulp}

    assert finding_of(NAME, Faulty(fault), case_of()).status is Status.PASS


@pytest.mark.parametrize("fields", [{}, FEATURES["ragged"], {"seqlens_k": (7, 9)}])
def test_a_nan_that_leaves_its_sequence_is_rejected(fields: dict[str, Any]) -> None:
    """0 * NaN of a row that a tile shares with another sequence."""

    def fault(honestly: Callable[[Call], Outputs], call: Call) -> Outputs:
        outputs = honestly(call)
        foreign = np.isnan(call.arrays["q"]).any()
        return outputs | {"lse": outputs["lse"] + np.float32(np.nan if foreign else 0)}

    finding = finding_of(NAME, Faulty(fault), case_of(**fields))
    assert any(reason.startswith("other sequences NaN: lse") for reason in finding.reasons)
