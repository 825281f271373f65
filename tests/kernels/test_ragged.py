"""Packed sequences: each is computed as if it were alone, and only the rows of a sequence are touched."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from kernels.host_backend import HostBackend
from kernels.kernel import Kernel
from kernels.launch import backward, forward
from kernels.options import Options
from tests.kernels.support import KERNELS, assert_no_faults, small_tile

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
    common = {"causal": causal, "alignment": alignment, "softmax_scale": 0.4}
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
