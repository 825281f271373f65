"""Edges of the problem: nothing to attend to, grouped heads, padding, blocks of rows, storage types."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from references import rows as rows_module
from references.attention import attention
from references.attention_backward import attention_backward, attention_with_gradients
from references.masks import dense_bias, dense_keep
from references.options import AttentionExtras, AttentionOptions
from tests.references.problems import Problem, plain_problem, problems, relative_distance

GRADIENTS = ("dq", "dk", "dv", "dbias", "dsink")


@given(problems())
def test_rows_without_a_visible_key_are_exactly_empty_backward_too(problem: Problem) -> None:
    got = attention(*problem.operands, **problem.asked)
    grads = attention_backward(*problem.operands, problem.dout, **problem.asked, dlse=problem.dlse)
    for b in range(problem.q.shape[0]):
        n, m = problem.lengths(b)
        empty = ~dense_keep(problem.options, problem.extras, b, n, m, problem.q.shape[2]).any(axis=2)
        for h, i in zip(*np.nonzero(empty), strict=True):
            lse = -np.inf if problem.extras.sink is None else problem.extras.sink[h]
            assert (got.out[b, i, h] == 0).all()
            assert got.lse[b, h, i] == lse
            assert (grads.dq[b, i, h] == 0).all()
        assert (got.out[b, n:] == 0).all()
        assert (got.lse[b, :, n:] == -np.inf).all()
        assert (grads.dq[b, n:] == 0).all()
        assert (grads.dk[b, m:] == 0).all()
        assert (grads.dv[b, m:] == 0).all()


@given(problems())
def test_forward_with_backward_equals_each_alone(problem: Problem) -> None:
    asked = {**problem.asked, "dlse": problem.dlse}
    result, grads = attention_with_gradients(*problem.operands, problem.dout, **asked)
    alone = attention(*problem.operands, **problem.asked)
    assert_array_equal(result.out, alone.out)
    assert_array_equal(result.lse, alone.lse)
    expected = attention_backward(*problem.operands, problem.dout, **asked)
    for name in GRADIENTS:
        assert_array_equal(getattr(grads, name), getattr(expected, name))


@pytest.mark.parametrize(("seqlen_q", "seqlen_k"), [(0, 3), (3, 0), (0, 0)])
def test_empty_sequences_are_answered_backward_too(seqlen_q: int, seqlen_k: int) -> None:
    problem = plain_problem(seqlen_q=seqlen_q, seqlen_k=seqlen_k)
    got = attention(*problem.operands, **problem.asked)
    grads = attention_backward(*problem.operands, problem.dout, **problem.asked)
    assert (got.out == 0).all()
    assert (got.lse == -np.inf).all()
    assert [(grads.dq == 0).all(), (grads.dk == 0).all(), (grads.dv == 0).all()] == [True] * 3


def test_grouped_heads_equal_repeated_heads_backward_too() -> None:
    problem = plain_problem(nheads=6, nheads_kv=2)
    k, v = (np.repeat(x, 3, axis=2) for x in (problem.k, problem.v))
    assert_array_equal(
        attention(*problem.operands, **problem.asked).lse, attention(problem.q, k, v, **problem.asked).lse
    )
    shared = attention_backward(*problem.operands, problem.dout, **problem.asked)
    each = attention_backward(problem.q, k, v, problem.dout, **problem.asked)
    assert relative_distance(shared.dk, each.dk.reshape(2, 7, 2, 3, 3).sum(axis=3)) < 1e-15
    assert relative_distance(shared.dv, each.dv.reshape(2, 7, 2, 3, 2).sum(axis=3)) < 1e-15


@given(problems(), st.integers(1, 4))
def test_blocks_of_rows_and_heads_change_nothing_but_rounding_backward_too(problem: Problem, rows: int) -> None:
    whole = attention(*problem.operands, **problem.asked)
    grads = attention_backward(*problem.operands, problem.dout, **problem.asked, dlse=problem.dlse)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows_module, "BLOCK_BYTES", 8)
        cut = attention(*problem.operands, **problem.asked, rows_per_chunk=rows)
        cut_grads = attention_backward(*problem.operands, problem.dout, **problem.asked, dlse=problem.dlse)
    assert relative_distance(cut.out, whole.out) < 1e-14
    assert relative_distance(cut.lse, whole.lse) < 1e-14
    for name in GRADIENTS:
        if getattr(grads, name) is not None:
            assert relative_distance(getattr(cut_grads, name), getattr(grads, name)) < 1e-14, name


@given(problems())
def test_padding_equals_a_call_per_sequence(problem: Problem) -> None:
    got = attention(*problem.operands, **problem.asked)
    drop = problem.extras.dropout_keep
    for b in range(problem.q.shape[0]):
        n, m = problem.lengths(b)
        keep = dense_keep(problem.options, problem.extras, b, n, m, problem.q.shape[2])
        bias = dense_bias(problem.options, problem.extras, b, n, m, problem.q.shape[2])
        alone = attention(
            problem.q[b : b + 1, :n],
            problem.k[b : b + 1, :m],
            problem.v[b : b + 1, :m],
            options=replace(problem.options, causal=False, window=None),
            extras=AttentionExtras(
                mask=keep,
                bias=bias,
                sink=problem.extras.sink,
                dropout_keep=None if drop is None else drop[b : b + 1, :, :n, :m],
            ),
        )
        assert relative_distance(got.out[b, :n], alone.out[0]) < 1e-14
        assert relative_distance(got.lse[b, :, :n], alone.lse[0]) < 1e-14


@pytest.mark.parametrize("dtype", [np.float16, np.float32, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
def test_storage_types_are_widened_exactly_backward_too(dtype: type) -> None:
    problem = plain_problem()
    narrow = [x.astype(dtype) for x in (*problem.operands, problem.dout)]
    wide = [x.astype(np.float64) for x in narrow]
    assert_array_equal(
        attention(*narrow[:3], options=problem.options).out, attention(*wide[:3], options=problem.options).out
    )
    assert_array_equal(
        attention_backward(*narrow, options=problem.options).dk, attention_backward(*wide, options=problem.options).dk
    )


def test_strides_do_not_matter_backward_too() -> None:
    problem = plain_problem()
    dense = (*problem.operands, problem.dout)
    strided = [np.repeat(np.asfortranarray(x)[:, ::-1], 2, axis=3)[:, ::-1, :, ::2] for x in dense]
    assert not any(x.flags.c_contiguous for x in strided)
    assert_array_equal(attention(*strided[:3], **problem.asked).out, attention(*dense[:3], **problem.asked).out)
    assert_array_equal(attention_backward(*strided, **problem.asked).dk, attention_backward(*dense, **problem.asked).dk)


def test_operands_are_left_as_they_were_backward_too() -> None:
    problem = plain_problem(extras=AttentionExtras(bias=np.ones((5, 7)), mask=np.tri(5, 7, dtype=bool)))
    before = [x.copy() for x in (*problem.operands, problem.dout, problem.dlse, problem.extras.bias)]
    attention(*problem.operands, **problem.asked)
    attention_backward(*problem.operands, problem.dout, **problem.asked, dlse=problem.dlse)
    for old, new in zip(before, (*problem.operands, problem.dout, problem.dlse, problem.extras.bias), strict=True):
        assert_array_equal(old, new)


@pytest.mark.parametrize("causal", [False, True])
def test_logits_of_ten_thousand_pick_the_largest_without_warning(causal: bool) -> None:
    problem = plain_problem(seqlen_q=7, options=AttentionOptions(softmax_scale=1e4, causal=causal))
    got = attention(*problem.operands, **problem.asked)
    scores = 1e4 * np.einsum("bihd,bjhd->bhij", problem.q, np.repeat(problem.k, 2, axis=2))
    if causal:
        scores = np.where(np.tri(7, dtype=bool), scores, -np.inf)
    assert relative_distance(got.lse, scores.max(axis=3)) < 1e-6
    assert np.isfinite(got.out).all()


def test_one_visible_key_gives_its_value_and_no_score_gradient_backward_too() -> None:
    problem = plain_problem(seqlen_q=7, options=AttentionOptions(softmax_scale=0.75, window=(0, 0)))
    assert_array_equal(attention(*problem.operands, **problem.asked).out, np.repeat(problem.v, 2, axis=2))
    grads = attention_backward(*problem.operands, problem.dout, **problem.asked)
    assert (grads.dq == 0).all()
    assert (grads.dk == 0).all()
