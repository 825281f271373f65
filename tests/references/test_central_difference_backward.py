"""Central differences confirm the gradients within the error that they state, and state when they cannot."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from references.attention_backward import attention_backward
from references.central_difference import central_difference, evaluation_noise, richardson_difference
from references.options import AttentionExtras, AttentionOptions
from tests.references.problems import Problem, plain_problem, problems

OPERANDS = {"q": "dq", "k": "dk", "v": "dv", "bias": "dbias", "sink": "dsink"}


def slope_and_direction(problem: Problem, seed: int) -> tuple[float, dict[str, np.ndarray]]:
    grads = attention_backward(*problem.operands, problem.dout, **problem.asked, dlse=problem.dlse)
    draw = np.random.Generator(np.random.PCG64(seed)).standard_normal
    direction = {n: draw(getattr(grads, f).shape) for n, f in OPERANDS.items() if getattr(grads, f) is not None}
    return sum(float(np.sum(getattr(grads, OPERANDS[n]) * u)) for n, u in direction.items()), direction


@given(problems(), st.integers(0, 2**32 - 1))
def test_backward_lies_within_the_stated_error_of_the_difference(problem: Problem, seed: int) -> None:
    slope, direction = slope_and_direction(problem, seed)
    found = central_difference(*problem.operands, problem.dout, direction, **problem.asked, dlse=problem.dlse)
    if found.status != "inconclusive":
        # The estimate is good to a small factor, as its source says; a wrong formula is off by the value itself.
        assert abs(found.value - slope) <= 10 * found.error + 1e-13 * abs(slope), found


@pytest.mark.parametrize("seed", range(5))
def test_backward_of_a_common_problem_is_confirmed_to_nine_digits(seed: int) -> None:
    extras = AttentionExtras(sink=np.linspace(-1, 1, 4), bias=np.linspace(-1, 1, 35).reshape(5, 7))
    problem = plain_problem(seed, options=AttentionOptions(softmax_scale=0.75, softcap=5.0), extras=extras)
    slope, direction = slope_and_direction(problem, seed)
    found = central_difference(*problem.operands, problem.dout, direction, **problem.asked, dlse=problem.dlse)
    assert found.status == "converged"
    assert found.error < 1e-9
    assert abs(found.value - slope) <= 10 * found.error


def test_a_backward_that_forgets_dlse_is_outside_the_stated_error() -> None:
    problem = plain_problem()
    slope, direction = slope_and_direction(problem, 1)
    found = central_difference(*problem.operands, problem.dout, direction, **problem.asked)
    assert found.status == "converged"
    assert abs(found.value - slope) > 1e6 * found.error


def test_a_function_without_a_third_derivative_is_inconclusive_backward() -> None:
    assert richardson_difference(lambda t: math.copysign(abs(t) ** 1.5, t)).status == "inconclusive"


def test_the_derivative_of_a_parabola_is_noise_limited_and_right_backward() -> None:
    found = richardson_difference(lambda t: 3 * t + t * t)
    assert found.status == "noise_limited"
    assert abs(found.value - 3) <= found.error < 1e-12


def test_noise_of_a_rounded_line_is_found_within_a_factor_of_four() -> None:
    rng = np.random.Generator(np.random.PCG64(3))
    estimates = [evaluation_noise(lambda t: t + 1e-3 * rng.standard_normal()) for _ in range(200)]
    assert 1e-3 / 4 < float(np.median(estimates)) < 4e-3
