"""Truncating accumulation is biased: the bound covers a bit-exact model of tensor-core steps, alignment included."""

from __future__ import annotations

import numpy as np
import pytest

from tests.verify.tolerance.emulated import normal_arrays, problem
from verify.candidates.numpy_tiled import default_scheme, with_arithmetic
from verify.dense import dense_sequences
from verify.tolerance.roundings import U, resolve

MODELS = {"V100": (4, 23), "A100": (8, 24), "H100": (16, 25)}
"""Products a step and fraction bits kept after alignment (Fasi et al. 2021; Khattak and Mikaitis 2025)."""


def _truncate(values: np.ndarray, unit: np.ndarray) -> np.ndarray:
    return np.trunc(values / unit) * unit


def _tensor_core_sum(products: np.ndarray, chunk: int, bits: int) -> np.ndarray:
    """Sums along the last axis: align to the largest exponent, truncate to `bits`, add exactly, truncate to 24 bits."""
    total = np.zeros(products.shape[:-1])
    for start in range(0, products.shape[-1], chunk):
        terms = np.concatenate([products[..., start : start + chunk], total[..., None]], axis=-1)
        largest = np.frexp(np.abs(terms).max(axis=-1))[1] - 1
        exact = _truncate(terms, np.ldexp(1.0, largest - bits)[..., None]).sum(axis=-1)
        total = _truncate(exact, np.ldexp(1.0, np.frexp(exact)[1] - 1 - 23))
    return total


@pytest.mark.parametrize("gpu", MODELS)
@pytest.mark.parametrize("sign", ["one", "both"])
def test_tensor_core_sums_stay_within_the_step_bound(gpu: str, sign: str) -> None:
    chunk, bits = MODELS[gpu]
    rng = np.random.default_rng(0)
    products = rng.standard_normal((400, 2048)).astype(np.float32).astype(np.float64)
    products = np.abs(products) if sign == "one" else products
    error = np.abs(_tensor_core_sum(products, chunk, bits) - products.sum(axis=-1))
    half = (np.abs(products).sum(axis=-1) + np.abs(products.sum(axis=-1))) / 2
    p = problem()
    scheme = with_arithmetic(default_scheme("fp16"), accumulate="rtz", accumulate_chunk=chunk)
    rounds = resolve(p, next(dense_sequences(p, normal_arrays(p))), scheme.arithmetic)
    steps = 2048 / chunk
    assert (error <= rounds.step * steps * half).all()
    if sign == "one":
        # The plain truncation of the result, 2 U a step, is not enough: the alignment truncates too.
        assert error.max() > 2 * U * steps * half.max() / 2
