"""Laws of the reported metrics."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verify.dtypes import BF16, FP16, FP32
from verify.metrics import error_metrics

VALUES = np.array([1.0, -2.0, 0.5, 4.0])


@given(st.floats(0.1, 10.0))
def test_gain_is_the_factor_of_a_scaled_result(factor: float) -> None:
    metrics = error_metrics(factor * VALUES, VALUES, FP32)
    assert metrics.gain == pytest.approx(factor)
    assert metrics.cosine == pytest.approx(1.0)


def test_bias_is_the_mean_signed_error() -> None:
    assert error_metrics(VALUES + 0.25, VALUES, FP32).bias == pytest.approx(0.25)


@pytest.mark.parametrize(("form", "ulp"), [(FP32, 2.0**-23), (FP16, 2.0**-10), (BF16, 2.0**-7)])
def test_ulp_of_one_step_above_one_is_one(form: object, ulp: float) -> None:
    got, expected = np.array([1.0 + ulp]), np.array([1.0])
    assert error_metrics(got, expected, form).max_ulp == 1.0  # type: ignore[arg-type]


def test_relative_error_ignores_zeros_of_the_reference_but_not_the_absolute_error() -> None:
    metrics = error_metrics(np.array([1e-3, 2.0]), np.array([0.0, 2.0]), FP32)
    assert (metrics.max_abs, metrics.max_rel) == (1e-3, 0.0)


def test_zero_against_nonzero_has_cosine_zero_and_relative_error_one() -> None:
    metrics = error_metrics(np.zeros(4), VALUES, FP32)
    assert (metrics.cosine, metrics.rel_l2, metrics.gain) == (0.0, 1.0, 0.0)


def test_norms_survive_the_range_of_fp64() -> None:
    metrics = error_metrics(np.full(4, 1e200), np.full(4, 1e200), FP32)
    assert (metrics.cosine, metrics.rel_l2) == (pytest.approx(1.0), 0.0)


def test_nothing_to_compare_gives_nan_not_success() -> None:
    assert math.isnan(error_metrics(np.empty(0), np.empty(0), FP32).max_abs)
