"""forward and backward ask their namespace only for what CuPy has too."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from numpy.testing import assert_array_equal

from references.attention import attention
from references.attention_backward import attention_backward, attention_with_gradients
from references.options import AttentionExtras
from tests.references.problems import Problem, problems, relative_distance

CUPY_HAS = frozenset(
    {"abs", "arange", "ascontiguousarray", "broadcast_to", "cosh", "exp", "float64", "full", "inf", "isfinite", "isnan"}
    | {"log", "matmul", "maximum", "nan", "ones", "tanh", "where", "zeros", "zeros_like"}
)
"""Names used here that CuPy documents with the same meaning, `out=` of exp included."""


class Narrow:
    """NumPy without everything else."""

    def __getattr__(self, name: str) -> Any:
        if name not in CUPY_HAS:
            raise AssertionError(f"xp.{name} is not among the names that CuPy is known to have")
        return getattr(np, name)


@settings(max_examples=50)
@given(problems())
def test_a_namespace_that_has_only_cupy_names_suffices_backward_too(problem: Problem) -> None:
    got = attention(*problem.operands, **problem.asked, xp=Narrow())
    assert_array_equal(got.out, attention(*problem.operands, **problem.asked).out)
    grads = attention_backward(*problem.operands, problem.dout, **problem.asked, dlse=problem.dlse, xp=Narrow())
    expected = attention_backward(*problem.operands, problem.dout, **problem.asked, dlse=problem.dlse)
    assert_array_equal(grads.dk, expected.dk)


def test_every_name_exists_in_cupy() -> None:
    cupy = pytest.importorskip("cupy", reason="CuPy is the optional extra of the GPU backends", exc_type=ImportError)
    assert sorted(name for name in CUPY_HAS if not hasattr(cupy, name)) == []


@pytest.mark.gpu
@settings(max_examples=50)
@given(problem=problems())
def test_cupy_gives_the_numbers_of_numpy_backward_too(problem: Problem) -> None:
    cupy = pytest.importorskip("cupy", reason="CuPy is the optional extra of the GPU backends", exc_type=ImportError)
    if not cupy.is_available():
        pytest.skip("no NVIDIA GPU")
    moved = {
        field.name: cupy.asarray(value) if isinstance(value, np.ndarray | np.generic) else value
        for field in fields(problem.extras)
        for value in [getattr(problem.extras, field.name)]
    }
    asked = {"options": problem.options, "extras": AttentionExtras(**moved), "xp": cupy}
    q, k, v, dout, dlse = (cupy.asarray(x) for x in (*problem.operands, problem.dout, problem.dlse))
    result, grads = attention_with_gradients(q, k, v, dout, **asked, dlse=dlse)
    alone, expected = attention_with_gradients(*problem.operands, problem.dout, **problem.asked, dlse=problem.dlse)
    # exp, tanh and the order of sums differ between the two libraries by a few roundings.
    assert relative_distance(cupy.asnumpy(result.out), alone.out) < 1e-13
    assert relative_distance(cupy.asnumpy(result.lse), alone.lse) < 1e-13
    for name in ("dq", "dk", "dv", "dbias", "dsink"):
        if getattr(expected, name) is not None:
            assert relative_distance(cupy.asnumpy(getattr(grads, name)), getattr(expected, name)) < 1e-13, name
