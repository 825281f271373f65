"""NaN and infinity reach every row that may attend to them, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from references.attention import attention
from references.attention_backward import attention_backward
from references.nonfinite import visible_matmul
from references.options import AttentionExtras, AttentionOptions
from tests.references.ieee_loops import backward_loops, forward_loops
from tests.references.problems import Problem, plain_problem, problems, relative_distance

NOT_FINITE = st.sampled_from([np.nan, np.inf, -np.inf])


@st.composite
def poisoned_problems(draw: st.DrawFn, names: tuple[str, ...]) -> Problem:
    """A problem with one to three non-finite elements somewhere in the named operands."""
    problem = draw(problems())
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from(names))
        array = getattr(problem, name).copy()
        if array.size:
            array.flat[draw(st.integers(0, array.size - 1))] = draw(NOT_FINITE)
        problem = replace(problem, **{name: array})
    return problem


def assert_same_specials(got: Any, expected: Any) -> None:
    """NaN, +inf and -inf in the same places, and equal numbers elsewhere."""
    assert_array_equal(np.isnan(got), np.isnan(expected))
    assert relative_distance(np.nan_to_num(got, nan=0.0), np.nan_to_num(expected, nan=0.0)) < 1e-13


@given(poisoned_problems(("q", "k", "v")), st.none() | st.integers(1, 3))
def test_forward_specials_equal_loops_over_visible_keys(problem: Problem, rows: int | None) -> None:
    got = attention(*problem.operands, **problem.asked, rows_per_chunk=rows)
    with np.errstate(all="ignore"):
        out, lse = forward_loops(problem)
    assert_same_specials(got.out, out)
    assert_same_specials(got.lse, lse)


@given(poisoned_problems(("q", "k", "v", "dout", "dlse")), st.none() | st.integers(1, 3))
def test_backward_specials_equal_loops_over_visible_keys(problem: Problem, rows: int | None) -> None:
    got = attention_backward(*problem.operands, problem.dout, **problem.asked, dlse=problem.dlse, rows_per_chunk=rows)
    with np.errstate(all="ignore"):
        expected = backward_loops(problem)
    for name, grad in expected.items():
        assert_same_specials(getattr(got, name), grad)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_special_value_arrives_though_its_weight_underflows(bad: float) -> None:
    problem = plain_problem(options=AttentionOptions(softmax_scale=1.0))
    k, v = np.zeros_like(problem.k), problem.v.copy()
    k[:, 0] = -1e4 * problem.q[0, 0, 0]
    v[0, 0, 0, 0] = bad
    extras = AttentionExtras(mask=np.ones((5, 7), dtype=bool))
    for ask in (AttentionExtras(), extras):
        got = attention(problem.q, k, v, options=problem.options, extras=ask)
        assert not np.isfinite(got.out[0, 0, 0, 0])
        assert np.isfinite(got.out[0, :, :, 1]).all()


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_hidden_poison_changes_no_bit_backward_too(name: str) -> None:
    # Key 6 and row 4 are hidden from all others and from each other.
    mask = np.ones((5, 7), dtype=bool)
    mask[:, 6] = False
    mask[4, :] = False
    clean = plain_problem(extras=AttentionExtras(mask=mask))
    poisoned = {"q": clean.q.copy(), "k": clean.k.copy(), "v": clean.v.copy()}
    poisoned[name][:, -1] = np.nan
    got = attention(*poisoned.values(), **clean.asked)
    assert_array_equal(got.out, attention(*clean.operands, **clean.asked).out)
    grads = attention_backward(*poisoned.values(), clean.dout, **clean.asked, dlse=clean.dlse)
    expected = attention_backward(*clean.operands, clean.dout, **clean.asked, dlse=clean.dlse)
    for field in ("dq", "dk", "dv"):
        assert relative_distance(getattr(grads, field), getattr(expected, field)) < 1e-15, field


def test_padding_is_never_read_backward_too() -> None:
    lengths = AttentionExtras(seqlens_q=np.array([3, 5]), seqlens_k=np.array([7, 2]))
    clean = plain_problem(extras=lengths)
    q, k, v, dout, dlse = (x.copy() for x in (*clean.operands, clean.dout, clean.dlse))
    q[0, 3:], dout[0, 3:], dlse[0, :, 3:], k[1, 2:], v[1, 2:] = (np.nan,) * 5
    assert_array_equal(attention(q, k, v, **clean.asked).out, attention(*clean.operands, **clean.asked).out)
    got = attention_backward(q, k, v, dout, **clean.asked, dlse=dlse)
    expected = attention_backward(*clean.operands, clean.dout, **clean.asked, dlse=clean.dlse)
    assert_array_equal(got.dk, expected.dk)
    assert_array_equal(got.dq, expected.dq)


def test_infinities_of_both_signs_in_one_column_meet_as_nan() -> None:
    problem = plain_problem(extras=AttentionExtras(mask=np.array([[1, 1, 1, 1, 1, 1, 0]] * 5, dtype=bool)))
    v = problem.v.copy()
    v[0, 1, 0, 0], v[0, 2, 0, 0], v[0, 1, 0, 1] = np.inf, -np.inf, np.inf
    out = attention(problem.q, problem.k, v, **problem.asked).out
    assert np.isnan(out[0, :, :2, 0]).all()
    assert (out[0, :, :2, 1] == np.inf).all()
    assert np.isfinite(out[0, :, 2:]).all()


@pytest.mark.parametrize("mask", [None, np.array([[True, True, False]])])
def test_a_row_that_sees_only_scores_of_minus_infinity_is_nan_and_not_empty(mask: Any) -> None:
    q, k = np.full((1, 1, 1, 1), -np.inf), np.ones((1, 3, 1, 1))
    got = attention(q, k, k, options=AttentionOptions(softmax_scale=1.0), extras=AttentionExtras(mask=mask))
    assert np.isnan(got.out).all()
    assert np.isnan(got.lse).all()


def test_a_nan_bias_stays_in_its_row_backward_too() -> None:
    bias = np.zeros((5, 7))
    bias[2, 3] = np.nan
    mask = np.ones((5, 7), dtype=bool)
    mask[2, 6] = False
    problem = plain_problem(extras=AttentionExtras(bias=bias, mask=mask))
    out = attention(*problem.operands, **problem.asked).out
    assert_array_equal(np.isnan(out).any(axis=(0, 2, 3)), np.arange(5) == 2)
    grads = attention_backward(*problem.operands, problem.dout, **problem.asked)
    assert_array_equal(np.isnan(grads.dv).any(axis=(0, 2, 3)), np.arange(7) != 6)
    assert_array_equal(np.isnan(grads.dbias), (np.arange(5) == 2)[:, None] & mask)


@given(st.integers(0, 2**32 - 1))
def test_a_visible_product_equals_the_sum_of_its_visible_terms(seed: int) -> None:
    rng = np.random.Generator(np.random.PCG64(seed))
    keep = rng.random((3, 4)) < 0.6
    weights = np.where(keep, rng.choice([-2.0, -1.0, 0.0, 1.0, np.nan], (3, 4), p=[0.3, 0.1, 0.1, 0.4, 0.1]), 0.0)
    values = rng.choice([1.0, 3.0, np.inf, -np.inf, np.nan], (4, 2), p=[0.4, 0.3, 0.12, 0.12, 0.06])
    with np.errstate(invalid="ignore"):
        got = visible_matmul(weights, keep, values)
        expected = [
            [sum(weights[i, j] * values[j, c] for j in range(4) if keep[i, j]) for c in (0, 1)] for i in range(3)
        ]
    assert_array_equal(got, expected)
