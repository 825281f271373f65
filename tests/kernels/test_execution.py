"""How kernels run: no race or stray access, the same bits under any schedule, only outputs written."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from kernels.backend import Operand
from kernels.cpu_backend import REVERSED, random
from kernels.host_backend import HostBackend, buffers_of
from kernels.kernel import Kernel
from kernels.launch import forward, workspace_shapes
from kernels.options import Options
from kernels.problem import resolve_sizes
from kernels.registry import TEXTBOOK
from references.options import AttentionExtras, AttentionOptions
from tests.kernels.support import KERNELS, assert_no_faults, run, small_tile, stored
from tests.references.problems import Problem, plain_problem


def busy_problem(dtype: str = "fp32") -> Problem:
    """Every pass runs, tails on both sides, three query heads a key head."""
    rng = np.random.Generator(np.random.PCG64(2))
    extras = AttentionExtras(
        mask=rng.random((2, 1, 37, 43)) < 0.8,
        block_mask=rng.random((1, 3, 5, 4)) < 0.8,
        block_size=(8, 11),
        bias=rng.standard_normal((1, 3, 1, 43)),
        sink=rng.standard_normal(3),
        seqlens_q=np.array([37, 30]),
        seqlens_k=np.array([20, 43]),
        dropout_keep=np.ones((2, 3, 37, 43), bool),
    )
    options = AttentionOptions(softmax_scale=0.3, window=(15, 6), softcap=5.0, dropout_p=0.1)
    problem = plain_problem(6, seqlen_q=37, seqlen_k=43, nheads=3, nheads_kv=1, options=options, extras=extras)
    return stored(problem, dtype)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_checked_build_finds_no_race_and_no_stray_access_backward_too(
    kernel: Kernel, checked_cpu: HostBackend, dtype: str
) -> None:
    run(kernel, checked_cpu, busy_problem(dtype), small_tile(kernel))


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_any_schedule_gives_the_same_bits_backward_too(kernel: Kernel, cpu: HostBackend) -> None:
    problem = busy_problem()
    usual = run(kernel, cpu, problem, small_tile(kernel))
    for schedule in (REVERSED, random(1), random(2)):
        again = run(kernel, HostBackend(schedule=schedule), problem, small_tile(kernel))
        for name, array in usual.items():
            assert_array_equal(array, again[name], err_msg=name)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_inputs_are_left_alone_backward_too(kernel: Kernel, cpu: HostBackend) -> None:
    problem, untouched = busy_problem(), busy_problem()
    run(kernel, cpu, problem, small_tile(kernel))
    for name in ("q", "k", "v", "dout", "dlse"):
        assert_array_equal(getattr(problem, name), getattr(untouched, name), err_msg=name)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_workspaces_of_the_caller_change_nothing(kernel: Kernel, cpu: HostBackend) -> None:
    problem = busy_problem()
    problem = replace(problem, extras=AttentionExtras())
    sizes = resolve_sizes(kernel, cpu, *problem.operands, Options())
    given = {
        name: np.full(shape, np.nan, np.float32) for name, shape in workspace_shapes(kernel, "forward", sizes).items()
    }
    first = forward(kernel, cpu, *problem.operands, tile=small_tile(kernel))
    second = forward(kernel, cpu, *problem.operands, tile=small_tile(kernel), workspace=given)
    assert_no_faults(cpu)
    assert_array_equal(first[0], second[0])
    assert bool(given) == (kernel is TEXTBOOK)


def test_batch_elements_do_not_depend_on_their_neighbours(cpu: HostBackend) -> None:
    problem = stored(plain_problem(9, batch=3, seqlen_q=20, seqlen_k=20), "fp32")
    q, k, v = problem.operands
    for kernel in KERNELS:
        together, _ = forward(kernel, cpu, q, k, v)
        alone, _ = forward(kernel, cpu, q[1:2], k[1:2], v[1:2])
        assert_array_equal(together[1:2], alone)


def test_overlapping_views_become_one_buffer() -> None:
    packed = np.zeros((4, 3, 8), np.float32)
    views = [Operand(name=str(i), array=packed[:, i], writable=i == 2, initialised=i < 2) for i in range(3)]
    (joined,) = buffers_of(views)
    assert (joined.address, joined.nbytes) == (packed.ctypes.data, packed.nbytes)
    assert joined.writable
    assert joined.initialised
