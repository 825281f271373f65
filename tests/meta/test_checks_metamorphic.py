"""Metamorphic relations: faults that generic values forgive are found; honest kernels pass."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.meta.running import HONEST, Fault, Faulty, Outputs, case_of, finding_of, run_of
from tests.verify.candidates.asking import FEATURES
from verify.candidate import Call
from verify.case import Case
from verify.checks.balances import balances
from verify.checks.duality import duality_faults, exchanged
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
    assert broken == {"<Q, dQ> = <K, dK>", "Q^T dQ = (K^T dK)^T"}


@pytest.mark.parametrize("fields", [{}, {"sink": True, "causal": True}, FEATURES["gqa"]])
def test_a_lost_row_breaks_the_sum_of_dv(fields: dict[str, Any]) -> None:
    run = run_of("numpy_tiled", case_of(**fields))
    reply = run.outcome(backward=True).reply
    assert reply is not None
    bounds = run.facts.bounds(run.arithmetic, backward=True, with_dlse=run.with_dlse)
    wrong = {**reply.outputs, "dv": reply.outputs["dv"] * np.float32(0.999)}
    broken = {balance.label for balance in balances(run.facts, wrong, bounds) if not balance.holds}
    assert "sum of dV = sum of (1 - P_sink) dO" in broken


def test_a_sink_that_holds_all_weight_leaves_the_error_of_lse_in_the_sum_of_dv() -> None:
    """1 - P_sink is about 1e-11 here: of it an lse of 20 in fp64 leaves four digits."""
    text = "attn1:b=1,sq=1,sk=127,h=1,d=72,dtype=fp32,scale=1.0,window=0+0,sink=1,recipe=normal,seed=3228"
    finding = finding_of(NAME, "numpy_tiled", Case.parse(text))
    assert finding.status is Status.PASS, finding.reasons


def test_transposed_parts_of_dq_break_the_matrix_form_alone() -> None:
    """The trace forgives what is exchanged between columns."""
    run = run_of("numpy_tiled", case_of(batch=1, nheads=1))
    reply = run.outcome(backward=True).reply
    assert reply is not None
    bounds = run.facts.bounds(run.arithmetic, backward=True, with_dlse=run.with_dlse)
    q = run.facts.inputs.arrays["q"].astype(np.float64)
    moved = np.zeros_like(q)
    moved[..., 0], moved[..., 1] = 0.1 * q[..., 1], -0.1 * q[..., 0]
    wrong = {**reply.outputs, "dq": (reply.outputs["dq"] + moved).astype(np.float32)}
    broken = {balance.label for balance in balances(run.facts, wrong, bounds) if not balance.holds}
    assert broken == {"Q^T dQ = (K^T dK)^T"}


def when(condition: Callable[[Call], bool], tensor: str, factor: float = 1.01) -> Fault:
    """A tensor off by a factor in calls of one kind."""

    def fault(honestly: Callable[[Call], Outputs], call: Call) -> Outputs:
        outputs = honestly(call)
        if tensor in outputs and condition(call):
            outputs[tensor] = outputs[tensor] * np.float32(factor)
        return outputs

    return fault


def is_fresh(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Call], bool]:
    """Whether an array of a call is that change of the array of the case."""
    original = run_of("numpy_tiled", case_of()).facts.inputs.arrays[name]
    return lambda call: (
        call.arrays[name].shape == original.shape and bool((call.arrays[name] == change(original)).all())
    )


def flipped(q: np.ndarray) -> np.ndarray:
    changed = q.copy()
    changed[..., ::2] *= -1
    return changed


def cleared(v: np.ndarray) -> np.ndarray:
    changed = v.copy()
    changed[..., ::2] = 0
    return changed


@pytest.mark.parametrize(
    ("label", "array", "change", "tensor"),
    [
        ("signs of q and k flipped", "q", flipped, "dk"),
        ("v and dout negated", "v", lambda v: -v, "dq"),
        ("q times 4, k divided by it", "k", lambda k: k / 4, "lse"),
        ("q times 4, softmax_scale divided by it", "q", lambda q: q * 4, "dk"),
        ("every second column of v = 0", "v", cleared, "dv"),
        ("rows reversed", "q", lambda q: q[:, ::-1], "dq"),
        ("q and k negated", "q", lambda q: -q, "dk"),
        ("columns of v reversed", "v", lambda v: v[..., ::-1], "dv"),
        ("v = 0", "v", lambda v: 0 * v, "dv"),
        ("dout = 0", "dout", lambda dout: 0 * dout, "lse"),
        ("keys reversed", "k", lambda k: k[:, ::-1], "out"),
    ],
)
def test_a_call_that_breaks_a_symmetry_is_rejected(
    label: str, array: str, change: Callable[[np.ndarray], np.ndarray], tensor: str
) -> None:
    assert rejected_by(when(is_fresh(array, change), tensor), label)


def test_a_gradient_left_over_without_keys_is_rejected() -> None:
    def fault(honestly: Callable[[Call], Outputs], call: Call) -> Outputs:
        outputs = honestly(call)
        if not call.arrays["k"].any() and "dq" in outputs:
            outputs["dq"] = outputs["dq"] + np.float32(1e-9)
        return outputs

    assert rejected_by(fault, "k = 0")


def test_an_output_that_ignores_a_large_mean_is_rejected() -> None:
    assert rejected_by(when(lambda call: abs(float(call.arrays["v"].mean())) > 0.2, "out"), "v shifted by one vector")


def test_a_row_that_sees_one_key_must_return_its_value() -> None:
    def fault(honestly: Callable[[Call], Outputs], call: Call) -> Outputs:
        outputs = honestly(call)
        outputs["out"] = np.nextafter(outputs["out"], np.float32(9))
        return outputs

    case = case_of(causal=True, seqlen_k=18)
    assert finding_of(NAME, "numpy_tiled:exp", case).status is Status.PASS
    finding = finding_of(NAME, Faulty(fault, "numpy_tiled:exp"), case)
    assert any(reason.startswith("out is not v in ") for reason in finding.reasons)


def test_an_lse_of_the_wrong_side_breaks_the_exchange_of_q_and_k() -> None:
    """Within the bound of no call, but told without a reference: the bounds alone say so."""
    run = run_of("numpy_tiled", case_of())
    other = exchanged(run)
    assert other is not None
    here, there = (r.first_outcome().reply for r in (run, other))
    assert here is not None
    assert there is not None
    assert duality_faults(run, here.outputs, other, there.outputs) == []
    wrong = {**there.outputs, "lse": there.outputs["lse"] + np.float32(1e-4)}
    assert len(duality_faults(run, here.outputs, other, wrong)) == 2


@pytest.mark.parametrize(
    ("label", "condition", "tensor", "fields"),
    [
        ("every key twice", lambda call: call.problem.seqlen_k == 52, "dk", {}),
        ("k constant in column 0", lambda call: bool((call.arrays["k"][..., 0] == 1).all()), "dq", {}),
        ("shared heads repeated", lambda call: call.problem.nheads_kv == 4, "dq", FEATURES["gqa"]),
        ("q and k exchanged", lambda call: call.problem.seqlen_q == 26, "lse", {}),
    ],
)
def test_a_call_that_is_wrong_in_one_guise_is_rejected(
    label: str, condition: Callable[[Call], bool], tensor: str, fields: dict[str, Any]
) -> None:
    assert rejected_by(when(condition, tensor), label, **fields)
