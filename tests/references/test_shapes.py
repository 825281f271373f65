"""Operands that do not fit are refused in one line that names argument, value and expectation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from references.attention import attention
from references.attention_backward import attention_backward
from references.options import AttentionExtras, AttentionOptions
from tests.references.problems import plain_problem

PROBLEM = plain_problem()
FLAGS = np.ones((2, 4, 5, 7), dtype=bool)


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("q", np.zeros((5, 4, 3)), r"q: shape \(5, 4, 3\), expected \(batch, seqlen, nheads, head_dim\)"),
        ("k", np.zeros((2, 7, 2, 4)), r"k: shape \(2, 7, 2, 4\), expected \(2, 7, 2, 3\)"),
        ("v", np.zeros((2, 6, 2, 2)), r"v: shape \(2, 6, 2, 2\), expected \(2, 7, 2, 2\)"),
        ("q", np.zeros((2, 5, 3, 3)), r"k: 2 heads, expected a divisor of the 3 heads of q"),
    ],
)
def test_operands_that_do_not_fit_are_refused(name: str, array: Any, message: str) -> None:
    operands = {"q": PROBLEM.q, "k": PROBLEM.k, "v": PROBLEM.v, name: array}
    with pytest.raises(ValueError, match=f"^{message}$"):
        attention(**operands, options=PROBLEM.options)


@pytest.mark.parametrize(
    ("extras", "message"),
    [
        ({"mask": FLAGS[:, :, :, :6]}, r"mask: shape \(2, 4, 5, 6\), expected one that broadcasts to \(2, 4, 5, 7\)"),
        ({"mask": np.ones((5, 7))}, r"mask: dtype float64, expected bool"),
        ({"bias": np.ones((2, 1, 1, 5, 7))}, r"bias: shape \(2, 1, 1, 5, 7\), expected one that broadcasts to .*"),
        ({"sink": np.ones(2)}, r"sink: shape \(2,\), expected \(4,\)"),
        ({"alibi_slopes": np.ones(2)}, r"alibi_slopes: shape \(2,\), expected \(4,\) or \(2, 4\)"),
        ({"dropout_keep": FLAGS[:1]}, r"dropout_keep: shape \(1, 4, 5, 7\), expected \(2, 4, 5, 7\)"),
        ({"seqlens_q": [5]}, r"seqlens_q: \[5\], expected 2 integers in \[0, 5\]"),
        ({"seqlens_k": np.array([8, 1])}, r"seqlens_k: \[8, 1\], expected 2 integers in \[0, 7\]"),
        ({"block_mask": FLAGS}, r"block_size: None, expected \(block_q, block_k\), both >= 1, beside block_mask"),
        (
            {"block_mask": FLAGS, "block_size": (2, 2)},
            r"block_mask: shape \(2, 4, 5, 7\), expected \(2 or 1, 4 or 1, 3, 4\)",
        ),
    ],
)
def test_extras_that_do_not_fit_are_refused(extras: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        attention(*PROBLEM.operands, options=PROBLEM.options, extras=AttentionExtras(**extras))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"softmax_scale": np.nan}, r"softmax_scale: nan, expected a finite number"),
        ({"alignment": "left"}, r"alignment: 'left', expected one of \('bottom_right', 'top_left'\)"),
        ({"softcap": -1.0}, r"softcap: -1\.0, expected a finite number >= 0 \(0 means none\)"),
        ({"dropout_p": 1.0}, r"dropout_p: 1\.0, expected 0 <= p < 1"),
        ({"window": (-1, 0)}, r"window: \(-1, 0\), expected \(left, right\), each None or an integer >= 0"),
    ],
)
def test_options_outside_their_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        AttentionOptions(**{"softmax_scale": 1.0, **options})


def test_dropout_without_its_mask_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"^dropout_keep: None, expected bool \(2, 4, 5, 7\) because dropout_p is 0\.5$"
    ):
        attention(*PROBLEM.operands, options=replace(PROBLEM.options, dropout_p=0.5))


def test_a_block_of_no_rows_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^rows_per_chunk: 0, expected None or an integer >= 1$"):
        attention(*PROBLEM.operands, options=PROBLEM.options, rows_per_chunk=0)


def test_upstream_gradients_that_do_not_fit_are_refused_backward() -> None:
    with pytest.raises(ValueError, match=r"^dout: shape \(2, 4, 5\), expected \(2, 5, 4, 2\)$"):
        attention_backward(*PROBLEM.operands, PROBLEM.dlse, options=PROBLEM.options)
    with pytest.raises(ValueError, match=r"^dlse: shape \(2, 5, 4, 2\), expected \(2, 4, 5\)$"):
        attention_backward(*PROBLEM.operands, PROBLEM.dout, options=PROBLEM.options, dlse=PROBLEM.dout)
