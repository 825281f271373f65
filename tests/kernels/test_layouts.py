"""Memory layouts: strides change where numbers lie, never what they are, so the bits must be the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from kernels.host_backend import HostBackend
from kernels.kernel import Kernel
from kernels.launch import backward, forward
from kernels.options import Options
from references.options import AttentionOptions
from tests.kernels.support import KERNELS, assert_no_faults, run, small_tile, stored
from tests.references.problems import plain_problem

Layout = Callable[[Any], Any]


def heads_first(array: Any) -> Any:
    """(batch, nheads, seqlen, head_dim) in memory."""
    return np.ascontiguousarray(array.swapaxes(1, 2)).swapaxes(1, 2)


def every_second_dim(array: Any) -> Any:
    """Last stride 2, NaN in the gaps."""
    wide = np.full((*array.shape[:-1], 2 * array.shape[-1]), np.nan, array.dtype)
    wide[..., ::2] = array
    return wide[..., ::2]


def reversed_rows(array: Any) -> Any:
    """Negative sequence stride."""
    return np.ascontiguousarray(array[:, ::-1])[:, ::-1]


def dims_outermost(array: Any) -> Any:
    """Every stride exchanged."""
    return np.asfortranarray(array)


LAYOUTS: list[Layout] = [heads_first, every_second_dim, reversed_rows, dims_outermost]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
def test_input_layouts_give_the_same_bits_backward_too(kernel: Kernel, cpu: HostBackend, layout: Layout) -> None:
    problem = stored(plain_problem(1, seqlen_q=19, seqlen_k=21), "fp32")
    straight = run(kernel, cpu, problem, small_tile(kernel))
    options = Options(softmax_scale=problem.options.softmax_scale)
    q, k, v, dout = (layout(array) for array in (*problem.operands, problem.dout))
    out, lse = forward(kernel, cpu, q, k, v, options=options, tile=small_tile(kernel))
    grads = backward(
        kernel, cpu, q, k, v, layout(out), lse, dout, options=options, dlse=problem.dlse, tile=small_tile(kernel)
    )
    assert_no_faults(cpu)
    for name, array in {"out": out, "lse": lse, **grads}.items():
        assert_array_equal(array, straight[name], err_msg=name)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
def test_outputs_are_written_in_place_whatever_their_layout_backward_too(
    kernel: Kernel, cpu: HostBackend, layout: Layout
) -> None:
    problem = stored(plain_problem(2, seqlen_q=18, seqlen_k=17), "fp32")
    straight = run(kernel, cpu, problem, small_tile(kernel))
    options = Options(softmax_scale=problem.options.softmax_scale)
    places = {name: layout(np.full_like(straight[name], np.nan)) for name in ("out", "dq", "dk", "dv")}
    out, lse = forward(kernel, cpu, *problem.operands, options=options, out=places["out"], tile=small_tile(kernel))
    grads = backward(
        kernel, cpu, *problem.operands, out, lse, problem.dout, options=options, dlse=problem.dlse,
        grads={name: places[name] for name in ("dq", "dk", "dv")}, tile=small_tile(kernel),
    )  # fmt: skip
    assert_no_faults(cpu)
    assert out is places["out"]
    for name, array in {"out": out, **grads}.items():
        assert_array_equal(array, straight[name], err_msg=name)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_packed_qkv_gives_the_same_bits(kernel: Kernel, cpu: HostBackend) -> None:
    options = AttentionOptions(softmax_scale=0.5)
    problem = plain_problem(3, seqlen_q=20, seqlen_k=20, nheads=2, nheads_kv=2, head_dim_v=3, options=options)
    problem = stored(problem, "fp32")
    packed = np.stack(problem.operands, axis=2)
    views = (packed[:, :, 0], packed[:, :, 1], packed[:, :, 2])
    out, _ = forward(kernel, cpu, *views, options=Options(softmax_scale=0.5), tile=small_tile(kernel))
    assert_no_faults(cpu)
    assert_array_equal(out, run(kernel, cpu, problem, small_tile(kernel))["out"])


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_an_expanded_mask_equals_a_broadcast_one(kernel: Kernel, cpu: HostBackend) -> None:
    problem = stored(plain_problem(4, seqlen_q=20, seqlen_k=24), "fp32")
    mask = np.random.Generator(np.random.PCG64(0)).random((1, 1, 20, 24)) < 0.7
    expanded = np.broadcast_to(mask, (2, 4, 20, 24))
    outs = [
        forward(kernel, cpu, *problem.operands, options=Options(keep_mask=m), tile=small_tile(kernel))[0]
        for m in (mask, expanded)
    ]
    assert_array_equal(outs[0], outs[1])


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_bfloat16_given_as_its_bits_is_the_same_backward_too(kernel: Kernel, cpu: HostBackend) -> None:
    problem = stored(plain_problem(5, seqlen_q=20, seqlen_k=24), "bf16")
    values = run(kernel, cpu, problem, small_tile(kernel))
    names = ("q", "k", "v", "dout")
    bits = replace(problem, **{name: getattr(problem, name).view(np.uint16) for name in names})
    for name, array in run(kernel, cpu, bits, small_tile(kernel)).items():
        assert_array_equal(array, values[name].view(array.dtype), err_msg=name)
