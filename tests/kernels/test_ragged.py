"""Packed sequences: each is computed as if it were alone, and only the rows of a sequence are touched."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from kernels.dropout import dropout_keep_mask
from kernels.host_backend import HostBackend
from kernels.kernel import Kernel
from kernels.launch import backward, forward
from kernels.options import Options
from references.options import AttentionExtras, AttentionOptions
from references.varlen import attention_varlen, attention_varlen_backward
from tests.kernels.support import KERNELS, assert_no_faults, small_tile
from tests.references.problems import relative_distance

FP32_DISTANCE = 1e-4
"""Sums of up to 80 terms of order 10 in fp32: 80 * 10 * 2^-24 is 5e-5."""

CU_Q = np.array([0, 5, 5, 38, 40], np.int32)
CU_K = np.array([0, 20, 23, 40, 40], np.int32)


def packed_arrays(seed: int = 0) -> dict[str, Any]:
    draw = np.random.Generator(np.random.PCG64(seed)).standard_normal
    shapes = {"q": (40, 4, 8), "k": (40, 2, 8), "v": (40, 2, 6), "dout": (40, 4, 6), "dlse": (4, 40)}
    return {name: draw(shape).astype(np.float32) for name, shape in shapes.items()}


def attend(kernel: Kernel, cpu: HostBackend, arrays: dict[str, Any], options: Options) -> dict[str, Any]:
    """Outputs of forward and backward."""
    q, k, v = arrays["q"], arrays["k"], arrays["v"]
    tile = small_tile(kernel)
    out, lse = forward(kernel, cpu, q, k, v, options=options, tile=tile)
    grads = backward(kernel, cpu, q, k, v, out, lse, arrays["dout"], options=options, dlse=arrays["dlse"], tile=tile)
    assert_no_faults(cpu)
    return {"out": out, "lse": lse, **grads}


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("alignment", ["bottom_right", "top_left"])
def test_each_packed_sequence_has_the_bits_it_has_alone_backward_too(
    kernel: Kernel, cpu: HostBackend, causal: bool, alignment: str
) -> None:
    arrays = packed_arrays()
    common: dict[str, Any] = {"causal": causal, "alignment": alignment, "softmax_scale": 0.4}
    together = attend(kernel, cpu, arrays, Options(cu_seqlens_q=CU_Q, cu_seqlens_k=CU_K, **common))
    for b in range(4):
        rows, keys = slice(*CU_Q[b : b + 2]), slice(*CU_K[b : b + 2])
        cuts = {"q": rows, "k": keys, "v": keys, "dout": rows}
        alone = {name: arrays[name][cut][None] for name, cut in cuts.items()} | {"dlse": arrays["dlse"][None, :, rows]}
        single = attend(kernel, cpu, alone, Options(**common))
        assert_array_equal(together["lse"][:, rows], single["lse"][0])
        for name, cut in (("out", rows), ("dq", rows), ("dk", keys), ("dv", keys)):
            assert_array_equal(together[name][cut], single[name][0], err_msg=f"{name} of sequence {b}")


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_given_maxima_spare_the_read_back_and_change_nothing(kernel: Kernel, cpu: HostBackend) -> None:
    arrays = packed_arrays()
    read = Options(cu_seqlens_q=CU_Q, cu_seqlens_k=CU_K)
    given = Options(cu_seqlens_q=CU_Q, cu_seqlens_k=CU_K, max_seqlen_q=33, max_seqlen_k=20)
    first, second = attend(kernel, cpu, arrays, read), attend(kernel, cpu, arrays, given)
    for name in first:
        assert_array_equal(first[name], second[name], err_msg=name)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_a_nan_of_one_sequence_reaches_no_other_backward_too(kernel: Kernel, cpu: HostBackend) -> None:
    arrays = packed_arrays()
    options = Options(cu_seqlens_q=CU_Q, cu_seqlens_k=CU_K)
    clean = attend(kernel, cpu, arrays, options)
    for name in ("q", "k", "v", "dout"):
        cut = slice(*(CU_Q if name in ("q", "dout") else CU_K)[2:4])
        arrays[name][cut] = np.nan
    dirty = attend(kernel, cpu, arrays, options)
    for name, cu in (("out", CU_Q), ("dq", CU_Q), ("dk", CU_K), ("dv", CU_K)):
        others = np.r_[0 : cu[2], cu[3] : cu[4]]
        assert_array_equal(dirty[name][others], clean[name][others], err_msg=name)
        assert np.isnan(dirty[name][cu[2] : cu[3]]).all(), name


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_masks_bias_and_dropout_use_their_leading_corner_backward_too(kernel: Kernel, cpu: HostBackend) -> None:
    arrays, rng = packed_arrays(), np.random.Generator(np.random.PCG64(1))
    keep = rng.random((4, 1, 33, 20)) < 0.8
    bias, sink = rng.standard_normal((1, 4, 33, 20)).astype(np.float32), rng.standard_normal(4).astype(np.float32)
    dropout: dict[str, Any] = {"dropout_p": 0.25, "dropout_seed": 3}
    given: dict[str, Any] = {"keep_mask": keep, "bias": bias, "sink": sink, **dropout}
    options = Options(cu_seqlens_q=CU_Q, cu_seqlens_k=CU_K, softmax_scale=0.4, **given)
    got = attend(kernel, cpu, arrays, options)
    dropped = dropout_keep_mask(0.25, (4, 4, 33, 20), seed=3)
    extras = AttentionExtras(mask=keep, bias=bias, sink=sink, dropout_keep=dropped)
    asked: dict[str, Any] = {"options": AttentionOptions(softmax_scale=0.4, dropout_p=0.25), "extras": extras}
    cuts: dict[str, Any] = {"cu_seqlens_q": CU_Q, "cu_seqlens_k": CU_K}
    operands = [arrays[name] for name in ("q", "k", "v")]
    forward64 = attention_varlen(*operands, **asked, **cuts)
    grads = attention_varlen_backward(*operands, arrays["dout"], **asked, **cuts, dlse=arrays["dlse"])
    for name in ("dq", "dk", "dv", "dbias", "dsink"):
        assert relative_distance(got[name], getattr(grads, name)) < FP32_DISTANCE, name
    assert relative_distance(got["out"], forward64.out) < FP32_DISTANCE
    assert relative_distance(got["lse"], forward64.lse) < FP32_DISTANCE


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_a_maximum_that_is_too_small_stays_inside_memory(kernel: Kernel, checked_cpu: HostBackend) -> None:
    options = Options(cu_seqlens_q=CU_Q, cu_seqlens_k=CU_K, max_seqlen_q=9, max_seqlen_k=6)
    attend(kernel, checked_cpu, packed_arrays(), options)
