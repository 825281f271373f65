"""Answers worked out on paper. With softmax_scale = ln 2 and integer Q K^T, every exp(score) is a power of two.

K = (0,0) (1,0) (0,1) (1,1);  Q = (0,0) (1,0) (0,2) (1,1);  V = 180 * [(1,0) (0,1) (1,1) (2,-1)], 180 = lcm(4,6,10,9).

    Q K^T        exp(scale * Q K^T)   row sum
    0 0 0 0      1 1 1 1               4
    0 1 0 1      1 2 1 2               6
    0 0 2 2      1 1 4 4              10
    0 1 1 2      1 2 2 4               9
"""

from __future__ import annotations

import math

import numpy as np
from numpy.testing import assert_allclose

from references.attention import attention
from references.attention_backward import attention_backward
from references.options import AttentionExtras, AttentionOptions

LN2 = math.log(2)
ROUNDING = 1e-14


def rows(*values: tuple[float, float]) -> np.ndarray:
    """One batch element, one head."""
    return np.array(values, dtype=np.float64)[None, :, None, :]


Q = rows((0, 0), (1, 0), (0, 2), (1, 1))
K = rows((0, 0), (1, 0), (0, 1), (1, 1))
V = 180 * rows((1, 0), (0, 1), (1, 1), (2, -1))
DOUT = rows((1, 0), (0, 1), (5, 5), (9, -9))
FULL = AttentionOptions(softmax_scale=LN2)
CAUSAL = AttentionOptions(softmax_scale=LN2, causal=True)


def test_full_attention_of_four_by_four() -> None:
    # out_0 = 180/4 (1+0+1+2, 0+1+1-1);  out_1 = 180/6 (1+0+1+4, 0+2+1-2);
    # out_2 = 180/10 (1+0+4+8, 0+1+4-4);  out_3 = 180/9 (1+0+2+8, 0+2+2-4).
    result = attention(Q, K, V, options=FULL)
    assert_allclose(result.out, rows((180, 45), (180, 30), (234, 18), (220, 0)), atol=1e-12, rtol=ROUNDING)
    assert_allclose(result.lse, np.log([[[4, 6, 10, 9]]]), rtol=ROUNDING)


def test_full_attention_of_four_by_four_backward() -> None:
    # dP/180 = (1,0,1,2) (0,1,1,-1) 5(1,1,2,1) 9(1,-1,0,3);  delta/180 = 1, 1/6, 7, 11.
    # dS = (0,-45,0,45) (-5,50,25,-70) (-36,-36,216,-144) (-40,-800,-440,1280); each row sums to 0.
    # dQ_i/ln2 = (dS_i1 + dS_i3, dS_i2 + dS_i3);  dK_j/ln2 = (dS_1j + dS_3j, 2 dS_2j + dS_3j).
    grads = attention_backward(Q, K, V, DOUT, options=FULL)
    assert_allclose(grads.dq / LN2, rows((0, 45), (-20, -45), (-180, 72), (480, 840)), atol=1e-12, rtol=ROUNDING)
    assert_allclose(grads.dk / LN2, rows((-45, -112), (-750, -872), (-415, -8), (1210, 992)), atol=1e-12, rtol=1e-13)
    # dV_j = P_0j (1,0) + P_1j (0,1) + P_2j (5,5) + P_3j (9,-9); the sum over j is that of dO, (15,-3).
    expected = rows((1.75, -1 / 3), (2.75, -7 / 6), (4.25, 1 / 6), (6.25, -5 / 3))
    assert_allclose(grads.dv, expected, rtol=1e-13)


def test_causal_attention_with_a_sink_of_weight_one() -> None:
    # Row sums 1+1, 1+2+1, 1+1+4+1, 1+2+2+4+1; the sink's value is 0.
    result = attention(Q, K, V, options=CAUSAL, extras=AttentionExtras(sink=np.zeros(1)))
    expected = rows((90, 0), (45, 90), (900 / 7, 900 / 7), (198, 0))
    assert_allclose(result.out, expected, atol=1e-12, rtol=ROUNDING)
    assert_allclose(result.lse, np.log([[[2, 4, 7, 10]]]), rtol=ROUNDING)


def test_sink_and_lse_backward_of_one_row() -> None:
    # Row 0 sees key 0 alone: P = 1/2, dP = 180, delta = 90. dsink = 1/2 (dL - delta), dS = 1/2 (180 - 90 + dL).
    dout = rows((1, 0), (0, 0), (0, 0), (0, 0))
    dlse = np.array([[[4.0, 0, 0, 0]]])
    extras = AttentionExtras(sink=np.zeros(1), bias=np.zeros((4, 4)))
    grads = attention_backward(Q, K, V, dout, options=CAUSAL, extras=extras, dlse=dlse)
    assert_allclose(grads.dsink, [-43], rtol=ROUNDING)
    assert_allclose(grads.dbias, np.diag([47.0, 0, 0, 0]), rtol=ROUNDING)
    assert_allclose(grads.dv, rows((0.5, 0), (0, 0), (0, 0), (0, 0)), rtol=ROUNDING)


def test_dropout_scales_the_kept_and_leaves_lse() -> None:
    # Row 0, p = 1/2: keys 0 and 3 kept, each 2/4: 90 (1+2, 0-1).
    kept = np.ones((1, 1, 4, 4), dtype=bool)
    kept[0, 0, 0] = [True, False, False, True]
    options = AttentionOptions(softmax_scale=LN2, dropout_p=0.5)
    result = attention(Q, K, V, options=options, extras=AttentionExtras(dropout_keep=kept))
    assert_allclose(result.out[0, 0, 0], [270, -90], rtol=ROUNDING)
    assert_allclose(result.lse[0, 0, 0], math.log(4), rtol=ROUNDING)


def test_alibi_halves_the_weight_per_step_from_the_diagonal() -> None:
    # Slope ln 2, all Q K^T = 0: row 1 has weights 1/2 1 1/2 1/4, sum 9/4. 180 * 4/9 = 80.
    extras = AttentionExtras(alibi_slopes=np.array([LN2]))
    result = attention(np.zeros_like(Q), K, V, options=FULL, extras=extras)
    assert_allclose(result.out[0, 1, 0], [80 * (0.5 + 0 + 0.5 + 0.5), 80 * (0 + 1 + 0.5 - 0.25)], rtol=ROUNDING)


def test_window_and_alignment_choose_the_keys() -> None:
    # Two rows, four keys, window (1, 0): bottom-right shows row 0 keys 1 2 and row 1 keys 2 3; top-left 0 and 0 1.
    queries = np.zeros((1, 2, 1, 2))
    bottom = attention(queries, K, V, options=AttentionOptions(softmax_scale=1.0, window=(1, 0)))
    assert_allclose(bottom.out, rows((90, 180), (270, 0)), atol=1e-12)
    top = attention(queries, K, V, options=AttentionOptions(softmax_scale=1.0, window=(1, 0), alignment="top_left"))
    assert_allclose(top.out, rows((180, 0), (90, 90)), atol=1e-12)
