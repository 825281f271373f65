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
