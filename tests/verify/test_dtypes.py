"""Facts of the formats: spacing and overflow, against the formats themselves."""

import numpy as np
import pytest

from verify.dtypes import BF16, FORMATS, FP16, FP32, FloatFormat, float_format
from verify.errors import UsageError

STORED = (FP32, FP16, BF16)


@pytest.mark.parametrize("form", STORED, ids=lambda form: form.name)
def test_half_an_ulp_is_half_the_way_to_the_next_number(form: FloatFormat) -> None:
    code = np.dtype(f"u{form.numpy_dtype.itemsize}")
    largest = int(np.array(form.max_finite, form.numpy_dtype).view(code))
    codes = np.unique(
        np.concatenate([np.geomspace(1, largest - 1, 5000), np.linspace(1, largest - 1, 5000)]).astype(code)
    )
    numbers, following = (chosen.view(form.numpy_dtype).astype(np.float64) for chosen in (codes, codes + code.type(1)))
    np.testing.assert_array_equal(form.half_ulp(numbers), (following - numbers) / 2)
    np.testing.assert_array_equal(form.half_ulp(-numbers), (following - numbers) / 2)


@pytest.mark.parametrize("form", STORED, ids=lambda form: form.name)
def test_zero_is_as_far_from_its_neighbour_as_the_subnormals(form: FloatFormat) -> None:
    assert form.half_ulp(np.zeros(())) == form.half_subnormal


@pytest.mark.parametrize("form", STORED, ids=lambda form: form.name)
def test_the_overflow_threshold_is_where_rounding_gives_infinity(form: FloatFormat) -> None:
    top = form.overflow_threshold
    with np.errstate(over="ignore"):
        assert np.isinf(np.float32(top).astype(form.numpy_dtype) if form is not FP32 else np.float32(top))
        below = np.nextafter(np.float32(top), np.float32(0)) if form is not FP32 else np.float32(np.nextafter(top, 0))
        assert below.astype(form.numpy_dtype).astype(np.float64) == form.max_finite
    values = np.array([form.max_finite, -form.max_finite, 0.0, np.inf, np.nan])
    reaches = form.may_overflow(values, np.full(5, top - form.max_finite))
    assert reaches.tolist() == [True, True, False, False, False]
    assert not form.may_overflow(values, np.zeros(5)).any()


def test_an_unknown_format_is_refused_in_one_line() -> None:
    assert all(float_format(name) is form for name, form in FORMATS.items())
    with pytest.raises(UsageError, match="dtype='fp8': expected one of"):
        float_format("fp8")
