"""Probes: rare faults that hide within the rounding of generic values are found; honest kernels pass."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.meta.running import HONEST, Faulty, Outputs, case_of, finding_of
from tests.verify.candidates.asking import FEATURES
from verify.candidate import Call
from verify.verdict import Status

NAME = "probes"
LONG: dict[str, Any] = {"seqlen_k": 300, "seqlen_q": 3, "dtype": "bf16", "nheads": 1, "batch": 1}


@pytest.mark.parametrize("feature", [name for name in FEATURES if name not in ("no_keys", "no_rows")])
def test_the_emulation_passes_every_feature(feature: str) -> None:
    finding = finding_of(NAME, "numpy_tiled", case_of(**FEATURES[feature]))
    assert finding.status is Status.PASS, finding.reasons


@pytest.mark.parametrize("candidate", HONEST)
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_honest_kernels_pass(candidate: str, dtype: str) -> None:
    finding = finding_of(NAME, candidate, case_of(dtype=dtype, causal=True))
    assert finding.status is Status.PASS, finding.reasons


def phantom_key(honestly: Callable[[Call], Outputs], call: Call) -> Outputs:
    """The tail of the last tile is not masked: one more key with score 0 and value 0."""
    extra = {name: np.pad(call.arrays[name], ((0, 0), (0, 1), (0, 0), (0, 0))) for name in ("k", "v")}
    longer = replace(call.problem, seqlen_k=call.problem.seqlen_k + 1)
    outputs = honestly(replace(call, problem=longer, arrays={**call.arrays, **extra}))
    return {name: array[:, :-1] if name in ("dk", "dv") else array for name, array in outputs.items()}


def test_a_phantom_key_shows_where_all_scores_are_low() -> None:
    finding = finding_of(NAME, Faulty(phantom_key), case_of(**LONG))
    assert any(reason.startswith("scores about -22") for reason in finding.reasons)


def drops_last_key(honestly: Callable[[Call], Outputs], call: Call) -> Outputs:
    """A loop bound of seqlen_k - 1."""
    if call.backward:
        return honestly(call)
    shorter = replace(call.problem, seqlen_k=call.problem.seqlen_k - 1)
    cut = {name: call.arrays[name][:, :-1] for name in ("k", "v")}
    return honestly(replace(call, problem=shorter, arrays={**call.arrays, **cut}))


def test_a_dropped_key_shows_where_p_is_read_out() -> None:
    finding = finding_of(NAME, Faulty(drops_last_key), case_of(**LONG))
    assert any(reason.startswith("P read out from key 292") for reason in finding.reasons)


def weight_behind_mask(honestly: Callable[[Call], Outputs], call: Call) -> Outputs:
    """A mask value of -30 instead of -inf: hidden keys keep a weight of 1e-13."""
    outputs = honestly(call)
    everything = honestly(replace(call, problem=replace(call.problem, causal=False), backward=False))["out"]
    return outputs | {"out": outputs["out"] + np.float32(1e-30) * everything}


def test_the_least_weight_behind_a_mask_is_rejected() -> None:
    finding = finding_of(NAME, Faulty(weight_behind_mask), case_of(causal=True))
    assert any("weight on keys that the row does not see" in reason for reason in finding.reasons)


def first_product(call: Call) -> float:
    """q k^T of the first row and key."""
    return float(call.arrays["q"][0, 0, 0].astype(np.float64) @ call.arrays["k"][0, 0, 0].astype(np.float64))


def marked(call: Call) -> bool:
    """Some key carries a marker in all columns."""
    v = call.arrays["v"][0, :, 0].astype(np.float64)
    return bool(((v == v[:, :1]).all(axis=1) & (v[:, 0] >= 4)).any())


@pytest.mark.parametrize(
    ("label", "condition"),
    [
        ("P read out", lambda call: bool(np.isin(call.arrays["v"], (0, 1)).all() and not call.arrays["v"].all())),
        ("v = 1", lambda call: bool((call.arrays["v"] == 1).all())),
        ("q = 0", lambda call: not call.arrays["q"].any()),
        ("needles", marked),
        ("scores about -22", lambda call: -40 < first_product(call) * call.problem.softmax_scale < -15),
        ("scores about -100", lambda call: -150 < first_product(call) * call.problem.softmax_scale < -50),
        ("q k^T about -5e4", lambda call: first_product(call) < -1e4),
        ("v with a mean", lambda call: float(call.arrays["v"].astype(np.float64).mean()) > 6),
    ],
)
def test_a_fault_in_one_region_is_found_by_the_probe_that_goes_there(
    label: str, condition: Callable[[Call], bool]
) -> None:
    def fault(honestly: Callable[[Call], Outputs], call: Call) -> Outputs:
        outputs = honestly(call)
        wrong = outputs["out"] * np.float32(2.0 if condition(call) else 1.0)
        return outputs | {"out": wrong.astype(outputs["out"].dtype)}

    finding = finding_of(NAME, Faulty(fault), case_of(**LONG))
    assert any(reason.startswith(label) for reason in finding.reasons)
