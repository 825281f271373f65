"""Both versions against the fp64 reference, on every combination of options that the reference knows."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from kernels.host_backend import HostBackend
from kernels.kernel import Kernel
from references.options import AttentionOptions
from tests.kernels.support import DTYPES, KERNELS, assert_agrees, run, small_tile, stored
from tests.references.problems import Problem, plain_problem, problems


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(problem=problems())
def test_any_options_agree_forward_and_backward(kernel: Kernel, cpu: HostBackend, problem: Problem) -> None:
    problem = stored(problem, "fp32")
    assert_agrees(run(kernel, cpu, problem, small_tile(kernel)), problem, "fp32")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("causal", [False, True])
def test_every_storage_type_agrees_forward_and_backward(
    kernel: Kernel, cpu: HostBackend, dtype: str, causal: bool
) -> None:
    options = AttentionOptions(softmax_scale=0.125, causal=causal)
    problem = plain_problem(3, seqlen_q=70, seqlen_k=81, head_dim=64, head_dim_v=64, options=options)
    problem = stored(problem, dtype)
    assert_agrees(run(kernel, cpu, problem), problem, dtype)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize(("head_dim", "head_dim_v"), [(1, 1), (33, 20), (64, 128), (100, 100), (192, 128), (256, 256)])
def test_every_head_dim_agrees_forward_and_backward(
    kernel: Kernel, cpu: HostBackend, head_dim: int, head_dim_v: int
) -> None:
    options = AttentionOptions(softmax_scale=head_dim**-0.5)
    problem = plain_problem(
        4, batch=1, seqlen_q=35, seqlen_k=40, head_dim=head_dim, head_dim_v=head_dim_v, options=options
    )
    problem = stored(problem, "fp32")
    assert_agrees(run(kernel, cpu, problem), problem, "fp32")


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("seqlen_q", [0, 1, 15, 16, 17, 33])
@pytest.mark.parametrize("seqlen_k", [0, 1, 16, 31, 49])
def test_every_tail_agrees_forward_and_backward(kernel: Kernel, cpu: HostBackend, seqlen_q: int, seqlen_k: int) -> None:
    options = AttentionOptions(softmax_scale=0.3, causal=True)
    problem = plain_problem(5, batch=1, seqlen_q=seqlen_q, seqlen_k=seqlen_k, nheads=3, nheads_kv=1, options=options)
    problem = stored(problem, "fp32")
    assert_agrees(run(kernel, cpu, problem, small_tile(kernel)), problem, "fp32")
