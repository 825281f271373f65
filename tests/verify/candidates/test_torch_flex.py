"""flex_attention without compilation: every declared feature, forward only."""

from __future__ import annotations

import pytest

from tests.verify.candidates.asking import FEATURES, arrays_of, ask, distance, problem_of
from tests.verify.candidates.plain import plain_attention
from verify.candidate import RefusedError
from verify.candidates import load

pytest.importorskip("torch")
CAPABILITIES = load("torch_flex").contract.capabilities
DECLARED = [name for name, fields in FEATURES.items() if CAPABILITIES.refusal(problem_of(**fields)) is None]
# One sum of at most 26 terms whose sizes reach 4.
FP32_LIMIT = 26 * 4 * 2.0**-24


@pytest.mark.parametrize("feature", DECLARED)
def test_every_declared_feature_runs_and_equals_the_formula(feature: str) -> None:
    problem = problem_of(**FEATURES[feature])
    arrays = arrays_of(problem)
    reply = ask(load("torch_flex"), problem, arrays)
    assert set(reply.outputs) == {"out", "lse"}
    assert max(distance(reply.outputs, plain_attention(problem, arrays)).values()) < FP32_LIMIT
    assert reply.route.backend == "math_attention"


def test_a_backward_is_refused_as_torch_refuses_it() -> None:
    problem = problem_of()
    with pytest.raises(RefusedError, match="does not support backward on CPU"):
        ask(load("torch_flex"), problem, arrays_of(problem), backward=True)


def test_reduced_precision_is_off_by_the_roundings_of_p_and_out() -> None:
    problem = problem_of("bf16", causal=True)
    arrays = arrays_of(problem)
    outputs = ask(load("torch_flex"), problem, arrays).outputs
    assert outputs["out"].dtype == arrays["q"].dtype
    # P is rounded and so is out, half a unit of 2^-7 each, at sizes up to 4.
    assert distance(outputs, plain_attention(problem, arrays))["out"] < 2 * 4 * 2.0**-8
