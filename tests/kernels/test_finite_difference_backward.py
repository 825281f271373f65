"""Gradients against differences of the kernel's own forward, with no reference in between.

The forward is fp32: a central difference with step h is off by about u |f| / h (rounding) and h^2 / 6 times the third
derivative (truncation). With f = <dout, out> + <dlse, lse> of order 10 and h = 2^-5 these are 2e-5 and, along a unit
direction, 2e-4; a gradient that is wrong differs by its own size.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kernels.host_backend import HostBackend
from kernels.kernel import Kernel
from kernels.launch import forward
from references.options import AttentionExtras, AttentionOptions
from tests.kernels.support import KERNELS, options_of, run, small_tile, stored
from tests.references.problems import Problem, plain_problem

STEP = 2.0**-5
TOLERANCE = 5e-3
GRADIENT_OF = {"q": "dq", "k": "dk", "v": "dv", "bias": "dbias", "sink": "dsink"}


def full_problem() -> Problem:
    """Causal, softcap, dropout, bias and sink at once, two query heads for each key head."""
    draw = np.random.Generator(np.random.PCG64(8)).standard_normal
    extras = AttentionExtras(
        bias=draw((1, 4, 18, 21)),
        sink=draw(4),
        dropout_keep=np.ones((2, 4, 18, 21), bool),
    )
    options = AttentionOptions(softmax_scale=0.5, causal=True, softcap=3.0, dropout_p=0.2)
    return stored(plain_problem(8, seqlen_q=18, seqlen_k=21, head_dim=6, options=options, extras=extras), "fp32")


def value(kernel: Kernel, cpu: HostBackend, problem: Problem) -> float:
    """<dout, out> + <dlse, lse>, summed in fp64."""
    options = options_of(problem)
    out, lse = forward(kernel, cpu, *problem.operands, options=options, tile=small_tile(kernel))
    return float((problem.dout.astype(np.float64) * out).sum() + (problem.dlse.astype(np.float64) * lse).sum())


def moved(problem: Problem, name: str, direction: Any, step: float) -> Problem:
    if name in ("bias", "sink"):
        shifted = (getattr(problem.extras, name) + step * direction).astype(np.float32)
        return replace(problem, extras=replace(problem.extras, **{name: shifted}))
    return replace(problem, **{name: (getattr(problem, name) + step * direction).astype(np.float32)})


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("name", GRADIENT_OF)
def test_finite_difference_backward(kernel: Kernel, cpu: HostBackend, name: str) -> None:
    problem = full_problem()
    gradient = run(kernel, cpu, problem, small_tile(kernel))[GRADIENT_OF[name]].astype(np.float64)
    # Along the gradient itself the derivative is the gradient's norm, the largest of all unit directions.
    norm = np.linalg.norm(gradient)
    direction = gradient / norm
    ahead, behind = (value(kernel, cpu, moved(problem, name, direction, sign * STEP)) for sign in (1, -1))
    assert (ahead - behind) / (2 * STEP) == pytest.approx(norm, rel=TOLERANCE)
