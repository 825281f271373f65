"""Two implementations that share no code agree on every combination of options."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from references.attention import attention
from references.attention_backward import attention_backward
from references.blockwise import attention_blockwise, attention_blockwise_backward
from tests.references.problems import Problem, plain_problem, problems, relative_distance

TILES = st.tuples(st.integers(1, 5), st.integers(1, 5))

# A handful of roundings of 2^-53 on sums of at most 9 keys; wrong formulas differ in the first digits.
AGREEMENT = 2e-14


@given(problems(), TILES, st.none() | st.integers(1, 4))
def test_forward_agrees_with_the_blockwise_implementation(
    problem: Problem, tile: tuple[int, int], rows: int | None
) -> None:
    got = attention(*problem.operands, **problem.asked, rows_per_chunk=rows)
    expected = attention_blockwise(*problem.operands, **problem.asked, tile=tile)
    assert relative_distance(got.out, expected.out) < AGREEMENT
    assert relative_distance(got.lse, expected.lse) < AGREEMENT


@given(problems(), TILES, st.none() | st.integers(1, 4))
def test_backward_agrees_with_the_blockwise_implementation(
    problem: Problem, tile: tuple[int, int], rows: int | None
) -> None:
    given_ = (*problem.operands, problem.dout)
    got = attention_backward(*given_, **problem.asked, dlse=problem.dlse, rows_per_chunk=rows)
    expected = attention_blockwise_backward(*given_, **problem.asked, dlse=problem.dlse, tile=tile)
    for name in ("dq", "dk", "dv", "dbias", "dsink"):
        if getattr(expected, name) is None:
            assert getattr(got, name) is None, name
        else:
            assert relative_distance(getattr(got, name), getattr(expected, name)) < AGREEMENT, name


@pytest.mark.parametrize("fault", ["scale", "causal", "softcap"])
def test_the_comparison_rejects_a_wrong_option(fault: str) -> None:
    problem = plain_problem()
    wrong = {"scale": {"softmax_scale": 0.751}, "causal": {"causal": True}, "softcap": {"softcap": 20.0}}[fault]
    got = attention(*problem.operands, options=replace(problem.options, **wrong))
    assert relative_distance(got.out, attention_blockwise(*problem.operands, **problem.asked).out) > 1e-6
    assert np.isfinite(got.out).all()
