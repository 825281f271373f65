"""The comparison must reject each of these, and accept the exact result beside it."""

import math

import numpy as np
import pytest

from verify.compare import Expected, compare
from verify.dtypes import FP16, FP32, FloatFormat
from verify.verdict import Comparison

SHAPE = (2, 5, 3, 4)


def _expected(values: np.ndarray, bound: float = 1e-6, form: FloatFormat = FP32) -> Expected:
    return Expected(tensor="out", values=values, bound=np.full(values.shape, bound), form=form, tile=(2, 0))


def _values() -> np.ndarray:
    return np.random.default_rng(3).standard_normal(SHAPE).astype(np.float32).astype(np.float64)


def _compare_with(change: tuple[tuple[int, ...], float] | None) -> Comparison:
    values = _values()
    got = values.astype(np.float32)
    if change is not None:
        got[change[0]] = change[1]
    return compare(got, _expected(values))


def test_exact_result_is_accepted_and_complete() -> None:
    comparison = _compare_with(None)
    assert comparison.accepted
    assert comparison.n_total == math.prod(SHAPE)
    assert len(comparison.worst) == 10
    assert (comparison.cosine, comparison.gain, comparison.max_abs) == pytest.approx((1.0, 1.0, 0.0))


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf, 7.0])
def test_one_wrong_element_is_rejected(wrong: float) -> None:
    comparison = _compare_with(((1, 4, 2, 3), wrong))
    assert not comparison.accepted
    assert comparison.worst[0].index == (1, 4, 2, 3)
    assert comparison.worst[0].tile == (2, 0)


def test_nan_everywhere_is_rejected() -> None:
    got = np.full(SHAPE, np.nan, np.float32)
    comparison = compare(got, _expected(_values()))
    assert not comparison.accepted
    assert "all NaN" in comparison.pattern


def test_zeros_are_rejected_and_named() -> None:
    comparison = compare(np.zeros(SHAPE, np.float32), _expected(_values()))
    assert not comparison.accepted
    assert "all zeros" in comparison.pattern


def test_equal_infinities_are_accepted_and_opposite_ones_rejected() -> None:
    values = np.array([-np.inf, 1.0]).reshape(1, 2)
    expected = Expected(tensor="lse", values=values, bound=np.zeros((1, 2)), form=FP32)
    assert compare(values.astype(np.float32), expected).accepted
    assert compare(-values.astype(np.float32), expected).neginf_mismatch == 1


def test_nan_bound_accepts_nothing_but_equality() -> None:
    values = np.ones((1, 2))
    expected = Expected(tensor="lse", values=values, bound=np.full((1, 2), np.nan), form=FP32)
    assert not compare(np.full((1, 2), 1.5, np.float32), expected).accepted


def test_zero_bound_demands_exact_equality() -> None:
    expected = _expected(np.zeros(SHAPE), bound=0.0)
    assert compare(-np.zeros(SHAPE, np.float32), expected).accepted
    assert not compare(np.full(SHAPE, 1e-30, np.float32), expected).accepted


def test_wrong_shape_or_dtype_is_rejected_even_if_values_agree() -> None:
    values = _values()
    assert not compare(values.astype(np.float32)[:1], _expected(values)).accepted
    assert not compare(values, _expected(values)).accepted


def test_infinity_is_accepted_only_where_the_bound_reaches_overflow() -> None:
    values = np.array([[65504.0, 60000.0]])
    expected = Expected(tensor="lse", values=values, bound=np.array([[64.0, 64.0]]), form=FP16)
    assert compare(np.array([[np.inf, 60000.0]], np.float16), expected).accepted
    assert not compare(np.array([[65504.0, np.inf]], np.float16), expected).accepted
    assert not compare(np.array([[-np.inf, 60000.0]], np.float16), expected).accepted


def test_fixed_limits_never_accept_nan() -> None:
    values = _values()
    got = values.astype(np.float32)
    got[0, 0, 0, 0] = np.nan
    assert not compare(got, _expected(values)).fixed_limits_ok
    assert compare(values.astype(np.float32), _expected(values)).fixed_limits_ok
