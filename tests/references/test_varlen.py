"""A ragged batch is its sequences, each by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from numpy.testing import assert_array_equal

from references.attention import attention
from references.attention_backward import attention_backward
from references.options import AttentionExtras
from references.varlen import attention_varlen, attention_varlen_backward, pack, unpack
from tests.references.problems import Problem, plain_problem, problems, relative_distance


def ragged(problem: Problem) -> tuple[Problem, dict[str, Any]]:
    """The same padded problem with explicit lengths, and the arguments of its packed form."""
    bounds = [[0], [0]]
    for b in range(problem.q.shape[0]):
        for ends, length in zip(bounds, problem.lengths(b), strict=True):
            ends.append(ends[-1] + length)
    cu_q, cu_k = (np.array(ends, dtype=np.int32) for ends in bounds)
    extras = replace(problem.extras, seqlens_q=None, seqlens_k=None)
    padded = replace(problem, extras=replace(extras, seqlens_q=np.diff(cu_q), seqlens_k=np.diff(cu_k)))
    return padded, {"cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k, "options": problem.options, "extras": extras}


def packed(problem: Problem, asked: dict[str, Any]) -> list[Any]:
    q, dout = (pack(x, asked["cu_seqlens_q"]) for x in (problem.q, problem.dout))
    k, v = (pack(x, asked["cu_seqlens_k"]) for x in (problem.k, problem.v))
    return [q, k, v, dout, pack(np.moveaxis(problem.dlse, 1, 2), asked["cu_seqlens_q"]).T]


@given(problems(max_batch=3))
def test_packed_forward_equals_padded_forward(problem: Problem) -> None:
    padded, asked = ragged(problem)
    expected = attention(*padded.operands, **padded.asked)
    got = attention_varlen(*packed(padded, asked)[:3], **asked)
    assert relative_distance(got.out, pack(expected.out, asked["cu_seqlens_q"])) < 1e-14
    assert relative_distance(got.lse, pack(np.moveaxis(expected.lse, 1, 2), asked["cu_seqlens_q"]).T) < 1e-14


@given(problems(max_batch=3))
def test_packed_backward_equals_padded_backward(problem: Problem) -> None:
    padded, asked = ragged(problem)
    expected = attention_backward(*padded.operands, padded.dout, **padded.asked, dlse=padded.dlse)
    *operands, dlse = packed(padded, asked)
    got = attention_varlen_backward(*operands, **asked, dlse=dlse)
    assert relative_distance(got.dq, pack(expected.dq, asked["cu_seqlens_q"])) < 1e-14
    assert relative_distance(got.dk, pack(expected.dk, asked["cu_seqlens_k"])) < 1e-14
    assert relative_distance(got.dv, pack(expected.dv, asked["cu_seqlens_k"])) < 1e-14
    for name in ("dbias", "dsink"):
        if getattr(expected, name) is not None:
            assert relative_distance(getattr(got, name), getattr(expected, name)) < 1e-14, name


def test_unpack_undoes_pack_and_zeroes_the_slack() -> None:
    offsets = np.array([0, 2, 2, 5])
    rows = np.arange(10, dtype=np.float16).reshape(5, 2)
    padded = unpack(rows, offsets)
    assert padded.shape == (3, 3, 2)
    assert padded.dtype == np.float16
    assert (padded[1] == 0).all()
    assert (padded[0, 2:] == 0).all()
    assert_array_equal(pack(padded, offsets), rows)


@pytest.mark.parametrize("offsets", [[1, 5], [0, 3, 2, 5], [0, 4], []])
def test_offsets_that_do_not_cover_the_rows_are_refused(offsets: list[int]) -> None:
    q, k, v = (x[0] for x in plain_problem().operands)
    with pytest.raises(ValueError, match=r"^cu_seqlens_q: .*, expected offsets that start at 0, never decrease"):
        attention_varlen(
            q, k, v, cu_seqlens_q=np.array(offsets), cu_seqlens_k=np.array([0, 7]), options=plain_problem().options
        )


def test_lengths_beside_offsets_are_refused() -> None:
    problem = plain_problem(batch=1)
    q, k, v = (x[0] for x in problem.operands)
    with pytest.raises(ValueError, match=r"^seqlens_q, seqlens_k: set, expected None"):
        attention_varlen(
            q,
            k,
            v,
            cu_seqlens_q=np.array([0, 5]),
            cu_seqlens_k=np.array([0, 7]),
            options=problem.options,
            extras=AttentionExtras(seqlens_q=np.array([5])),
        )
