"""Metamorphic relations: faults that generic values forgive are found; honest kernels pass."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.meta.running import HONEST, Fault, Faulty, Outputs, case_of, finding_of, run_of
from tests.verify.candidates.asking import FEATURES
from verify.candidate import Call
from verify.checks.balances import balances
from verify.verdict import Status

NAME = "metamorphic"


@pytest.mark.parametrize("feature", [name for name in FEATURES if name not in ("no_keys", "no_rows")])
def test_the_emulation_passes_every_feature(feature: str) -> None:
    finding = finding_of(NAME, "numpy_tiled", case_of(**FEATURES[feature]))
    assert finding.status is Status.PASS, finding.reasons


@pytest.mark.parametrize("candidate", HONEST)
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_honest_kernels_pass(candidate: str, dtype: str) -> None:
    finding = finding_of(NAME, candidate, case_of(dtype=dtype, nheads=4, nheads_kv=2))
    assert finding.status is Status.PASS, finding.reasons


def rejected_by(fault: Fault, label: str, **fields: Any) -> bool:
    """Whether the relation of that label is among the reasons."""
    return any(reason.startswith(label) for reason in finding_of(NAME, Faulty(fault), case_of(**fields)).reasons)


def test_a_maximum_that_starts_at_zero_is_rejected() -> None:
    """Wrong only where all scores are negative: shifting k makes them so in some row."""

    def fault(honestly: Callable[[Call], Outputs], call: Call) -> Outputs:
        outputs = honestly(call)
        return outputs | {"lse": np.maximum(outputs["lse"], np.float32(0.5))}

    assert rejected_by(fault, "k shifted by one vector")


def test_values_clipped_at_a_constant_are_rejected() -> None:
    def fault(honestly: Callable[[Call], Outputs], call: Call) -> Outputs:
        outputs = honestly(call)
        return outputs | {"out": np.clip(outputs["out"], -4, 4)}

    assert rejected_by(fault, "v times 4", seqlen_k=2)


def test_a_gradient_floor_is_rejected() -> None:
    def fault(honestly: Callable[[Call], Outputs], call: Call) -> Outputs:
        outputs = honestly(call)
        return {name: array + np.float32(1e-12) if name == "dq" else array for name, array in outputs.items()}

    assert rejected_by(fault, "dout = 0")


def test_a_stale_row_of_dq_is_rejected() -> None:
    """Rows whose dout vanishes are skipped and keep what was there."""

    def fault(honestly: Callable[[Call], Outputs], call: Call) -> Outputs:
        outputs = honestly(call)
        if call.backward:
            skipped = ~call.arrays["dout"].any(axis=-1, keepdims=True)
            outputs["dq"] = np.where(skipped, np.float32(0.1), outputs["dq"])
        return outputs

    assert rejected_by(fault, "dout = 0 in every second row")


def test_a_dropped_gradient_of_lse_is_rejected_on_every_seed() -> None:
    def fault(honestly: Callable[[Call], Outputs], call: Call) -> Outputs:
        return honestly(replace(call, with_dlse=False))

    assert rejected_by(fault, "gradient of lse alone", seed=2)


def test_balances_hold_for_an_honest_backward_and_break_with_a_wrong_scale() -> None:
    run = run_of("numpy_tiled", case_of(**FEATURES["gqa"]))
    reply = run.outcome(backward=True).reply
    assert reply is not None
    outputs = reply.outputs
    bounds = run.facts.bounds(run.arithmetic, backward=True, with_dlse=run.with_dlse)
    assert all(balance.holds for balance in balances(run.facts, outputs, bounds))
    wrong = {**outputs, "dk": outputs["dk"] * np.float32(1.01)}
    broken = {balance.label for balance in balances(run.facts, wrong, bounds) if not balance.holds}
    assert broken == {"<Q, dQ> = <K, dK>"}
