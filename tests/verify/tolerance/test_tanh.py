"""A tanh that is less accurate than the exponential: declared, it is accepted; not declared, it is not."""

from __future__ import annotations

import numpy as np
import pytest

from verify.candidate import Array
from verify.case import Case
from verify.contract import Arithmetic
from verify.inputs import make_inputs
from verify.oracle import reference_outputs
from verify.tolerance import derive_bounds

CASE = Case.parse("attn1:b=1,sq=24,sk=40,h=2,d=16,dtype=fp32,softcap=5.0,recipe=logits:max=10.0,seed=3")
STEP = 2.0**-11
"""Relative error of tanh.approx.f32 (PTX ISA)."""


def with_rough_tanh(signs: str) -> dict[str, Array]:
    """out and lse in fp64 whose tanh alone is off, by STEP, everywhere up or up and down at random."""
    p, arrays = CASE.problem, make_inputs(CASE).arrays
    q, k, v = (np.asarray(arrays[name], np.float64).swapaxes(1, 2) for name in ("q", "k", "v"))
    tanh = np.tanh(q @ k.swapaxes(-1, -2) * p.softmax_scale / p.softcap)
    up = np.ones(tanh.shape) if signs == "up" else np.random.default_rng(0).choice([-1.0, 1.0], tanh.shape)
    weights = np.exp(p.softcap * tanh * (1 + STEP * up))
    total = weights.sum(axis=-1)
    return {"out": (weights / total[..., None] @ v).swapaxes(1, 2), "lse": np.log(total)}


def accepted(got: dict[str, Array], arithmetic: Arithmetic) -> bool:
    arrays = make_inputs(CASE).arrays
    reference = reference_outputs(CASE.problem, arrays, backward=False).outputs
    bounds = derive_bounds(CASE.problem, arrays, reference, arithmetic, backward=False)
    return all(bool((np.abs(got[name] - reference[name]) <= bounds[name].total).all()) for name in got)


@pytest.mark.parametrize("signs", ["up", "random"])
def test_rough_tanh_is_accepted_where_it_is_declared_and_nowhere_else(signs: str) -> None:
    got = with_rough_tanh(signs)
    assert accepted(got, Arithmetic(tanh_ulp=4096.0))
    assert not accepted(got, Arithmetic())
    assert not accepted(got, Arithmetic(tanh_ulp=512.0))
