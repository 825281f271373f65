"""Bad input is refused in one line that names the argument, before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kernels.host_backend import HostBackend
from kernels.launch import backward, forward
from kernels.options import Options
from kernels.registry import TEXTBOOK, TILED, kernel_named

F32 = np.float32


def zeros(*shape: int, dtype: Any = F32) -> Any:
    return np.zeros(shape, dtype)


Q, K, V = zeros(2, 3, 4, 8), zeros(2, 5, 2, 8), zeros(2, 5, 2, 6)
CU = np.array([0, 2, 6], np.int32)

OPTION_REFUSALS: list[tuple[Callable[[], Options], str]] = [
    (lambda: Options(keep_mask=zeros(2, 4, 3, 6, dtype=bool)), "keep_mask: shape .2, 4, 3, 6., expected"),
    (lambda: Options(keep_mask=zeros(3, 5)), "keep_mask: dtype float32, expected bool or uint8"),
    (lambda: Options(bias=zeros(2, 4, 3, 4)), "bias: shape"),
    (lambda: Options(bias=zeros(3, 5, dtype=np.float16)), "bias: dtype float16, expected float32"),
    (lambda: Options(sink=zeros(3)), "sink: shape .3,., expected .4,."),
    (lambda: Options(alibi_slopes=zeros(4, dtype=np.float64)), "alibi_slopes: dtype float64"),
    (lambda: Options(block_mask=zeros(1, 1, 2, 2, dtype=bool), block_size=(2, 2)), "block_mask: shape"),
    (lambda: Options(block_mask=zeros(1, 1, 2, 2, dtype=bool)), "block_size: None, expected"),
    (lambda: Options(seqlens_k=np.zeros(2, np.int64)), "seqlens_k: dtype int64, expected int32"),
    (lambda: Options(cu_seqlens_q=CU), "cu_seqlens_k: expected exactly when"),
    (lambda: Options(window=(-1, None)), "window: .-1, None., expected"),
    (lambda: Options(softcap=-1.0), "softcap: -1.0, expected"),
    (lambda: Options(alignment="left"), "alignment: 'left', expected"),
    (lambda: Options(softmax_scale=float("nan")), "softmax_scale: nan, expected"),
    (lambda: Options(dropout_p=1.0), "dropout_p: 1.0, expected"),
]


@pytest.mark.parametrize(("make", "message"), OPTION_REFUSALS)
def test_a_contradicting_option_is_refused(cpu: HostBackend, make: Callable[[], Options], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        forward(TILED, cpu, Q, K, V, options=make())


@pytest.mark.parametrize(
    ("q", "k", "v", "message"),
    [
        (zeros(2, 3, 8), K, V, "q: shape .2, 3, 8., expected .batch"),
        (Q, zeros(2, 5, 2, 7), V, "k: shape .2, 5, 2, 7., expected .2, 5, 2, 8."),
        (Q, K, zeros(2, 4, 2, 6), "v: shape .2, 4, 2, 6., expected .2, 5, 2, 6."),
        (zeros(2, 3, 5, 8), K, V, "nheads: 5, expected a multiple of nheads_kv=2"),
        (Q.astype(np.float64), K, V, "q: dtype float64, expected float32, float16"),
        (Q, K.astype(np.float16), V, "k: dtype float16, expected float32"),
    ],
)
def test_contradicting_shapes_and_dtypes_are_refused(cpu: HostBackend, q: Any, k: Any, v: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        forward(TILED, cpu, q, k, v)


def test_decreasing_cu_seqlens_are_refused(cpu: HostBackend) -> None:
    options = Options(cu_seqlens_q=np.array([0, 4, 3], np.int32), cu_seqlens_k=np.array([0, 2, 5], np.int32))
    with pytest.raises(ValueError, match=r"cu_seqlens_q: \[0, 4, 3\], expected 0 to 3 without a decrease"):
        forward(TILED, cpu, Q[0], K[0], V[0], options=options)


def test_wrong_destinations_are_refused(cpu: HostBackend) -> None:
    with pytest.raises(ValueError, match="out: shape"):
        forward(TILED, cpu, Q, K, V, out=zeros(2, 3, 4, 8))
    with pytest.raises(ValueError, match="lse: dtype float64, expected float32"):
        forward(TILED, cpu, Q, K, V, lse=zeros(2, 4, 3, dtype=np.float64))
    with pytest.raises(ValueError, match="scores has strides"):
        forward(TEXTBOOK, cpu, Q, K, V, workspace={"scores": zeros(2, 4, 5, 3).swapaxes(2, 3)})


def test_unasked_gradients_are_refused_backward(cpu: HostBackend) -> None:
    out, lse = zeros(2, 3, 4, 6), zeros(2, 4, 3)
    with pytest.raises(ValueError, match="grads: dbias, expected names out of dq, dk, dv"):
        backward(TILED, cpu, Q, K, V, out, lse, out, grads={"dbias": zeros(3, 5)})


def test_unknown_kernel_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="kernel: 'flash', expected one of cuda_textbook, cuda_tiled"):
        kernel_named("flash")
