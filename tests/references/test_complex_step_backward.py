"""The analytic backward equals derivatives taken without any backward formula."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from references.attention_backward import attention_backward
from references.complex_step import complex_step_derivative, complex_step_gradients
from references.options import AttentionExtras, AttentionOptions
from references.results import Gradients
from tests.references.problems import Problem, plain_problem, problems, relative_distance

OPERANDS = {"q": "dq", "k": "dk", "v": "dv", "bias": "dbias", "sink": "dsink"}
AGREEMENT = 1e-13


def analytic(problem: Problem) -> Gradients:
    return attention_backward(*problem.operands, problem.dout, **problem.asked, dlse=problem.dlse)


@given(problems(), st.integers(0, 2**32 - 1))
def test_backward_along_a_random_direction_equals_the_complex_step(problem: Problem, seed: int) -> None:
    grads = {name: getattr(analytic(problem), field) for name, field in OPERANDS.items()}
    draw = np.random.Generator(np.random.PCG64(seed)).standard_normal
    direction = {name: draw(grad.shape) for name, grad in grads.items() if grad is not None}
    expected = sum(float(np.sum(grads[name] * change)) for name, change in direction.items())
    size = sum(float(np.sum(np.abs(grads[name] * change))) for name, change in direction.items())
    got = complex_step_derivative(*problem.operands, problem.dout, direction, **problem.asked, dlse=problem.dlse)
    assert abs(got - expected) <= AGREEMENT * max(size, 1.0), f"got {got}, expected {expected}"


@given(problems(max_seqlen=3, max_batch=1))
def test_every_backward_element_equals_the_complex_step(problem: Problem) -> None:
    got = analytic(problem)
    expected = complex_step_gradients(*problem.operands, problem.dout, **problem.asked, dlse=problem.dlse)
    for field in OPERANDS.values():
        if getattr(expected, field) is not None:
            assert relative_distance(getattr(got, field), getattr(expected, field)) < AGREEMENT, field


def test_the_complex_step_rejects_a_backward_without_the_softcap_derivative() -> None:
    problem = plain_problem(options=AttentionOptions(softmax_scale=0.75, softcap=1.0))
    uncapped = replace(problem, options=replace(problem.options, softcap=0.0))
    expected = complex_step_gradients(*problem.operands, problem.dout, **problem.asked, dlse=problem.dlse)
    assert relative_distance(analytic(uncapped).dq, expected.dq) > 1e-3


def test_a_direction_that_names_no_operand_is_refused() -> None:
    problem = plain_problem()
    with pytest.raises(ValueError, match=r"direction: 'sink', expected names among \['q', 'k', 'v'\]"):
        complex_step_derivative(*problem.operands, problem.dout, {"sink": np.ones(4)}, **problem.asked)


def test_backward_stays_exact_at_logits_of_ten_thousand() -> None:
    problem = plain_problem(options=AttentionOptions(softmax_scale=1e4), extras=AttentionExtras(sink=np.zeros(4)))
    expected = complex_step_gradients(*problem.operands, problem.dout, **problem.asked, dlse=problem.dlse)
    for field in ("dq", "dk", "dv", "dsink"):
        assert relative_distance(getattr(analytic(problem), field), getattr(expected, field)) < AGREEMENT, field
