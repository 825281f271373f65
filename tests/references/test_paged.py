"""Pages hold the same keys in another place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from references.paged import add_to_pages, gather_pages, scatter_pages


@st.composite
def paged(draw: st.DrawFn) -> dict[str, Any]:
    """Lengths, a table that uses pages in random order, and NaN beyond every length."""
    page_size = draw(st.integers(1, 4))
    lengths = np.array(draw(st.lists(st.integers(0, 9), min_size=1, max_size=3)))
    width = int(-(-lengths.max() // page_size)) + draw(st.integers(0, 2))
    order = draw(st.permutations(range(width * len(lengths) + 2)))
    table = np.array(order[: width * len(lengths)], dtype=np.int32).reshape(len(lengths), width)
    table[np.arange(width)[None, :] >= -(-lengths // page_size)[:, None]] = -7
    padded = np.full((len(lengths), int(lengths.max()), 2, 3), np.nan, dtype=np.float32)
    for b, n in enumerate(lengths):
        padded[b, :n] = np.arange(n * 6).reshape(n, 2, 3) + 100 * b
    return {"padded": padded, "table": table, "lengths": lengths, "npages": len(order), "page_size": page_size}


@given(paged())
def test_gather_undoes_scatter_and_zeroes_the_slack(case: dict[str, Any]) -> None:
    pages = scatter_pages(
        case["padded"],
        case["table"],
        case["lengths"],
        npages=case["npages"],
        page_size=case["page_size"],
        fill=np.nan,
    )
    assert pages.dtype == np.float32
    got = gather_pages(pages, case["table"], case["lengths"])
    assert_array_equal(got, np.nan_to_num(case["padded"], nan=0.0))


@given(paged())
def test_slots_that_no_sequence_uses_hold_the_fill(case: dict[str, Any]) -> None:
    shape = {"npages": case["npages"], "page_size": case["page_size"]}
    pages = scatter_pages(case["padded"], case["table"], case["lengths"], **shape, fill=np.nan)
    assert np.isfinite(pages).sum() == 6 * case["lengths"].sum()


def test_a_shared_page_serves_two_sequences() -> None:
    pages = np.arange(8.0).reshape(4, 2, 1, 1)
    got = gather_pages(pages, np.array([[3, 0], [3, 1]]), np.array([3, 4]))
    assert_array_equal(got[..., 0, 0], [[6, 7, 0, 0], [6, 7, 2, 3]])


def test_adding_to_pages_is_the_adjoint_of_gathering_also_for_shared_pages_backward() -> None:
    rng = np.random.Generator(np.random.PCG64(0))
    table, lengths = np.array([[3, 0, 9], [3, 1, 2]]), np.array([3, 5])
    pages, padded = rng.standard_normal((4, 2, 2, 3)), rng.standard_normal((2, 6, 2, 3))
    padded[0, 3:] = padded[1, 5:] = np.nan
    gathered = gather_pages(pages, table, lengths)
    added = add_to_pages(padded, table, lengths, npages=4, page_size=2)
    seen = np.nan_to_num(padded[:, :5], nan=0.0)
    assert abs(np.sum(gathered * seen) - np.sum(pages * added)) < 1e-13


@pytest.mark.parametrize(
    ("table", "lengths", "message"),
    [
        ([[0, 4]], [3], r"page_table\[0\]: \[0, 4\], expected page numbers in \[0, 4\)"),
        ([[0, 1]], [5], r"seqlens_k\[0\]: 5, expected 0 to 4, which 2 pages hold"),
        ([[0, 1]], [3, 3], r"page_table: shape \(1, 2\), expected \(2, max_pages\)"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(table: list[Any], lengths: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gather_pages(np.zeros((4, 2, 1, 1)), np.array(table), np.array(lengths))


def test_scattering_two_sequences_onto_one_page_is_refused() -> None:
    with pytest.raises(ValueError, match=r"page_table: pages \[0, 0\], expected each used page once"):
        scatter_pages(np.zeros((2, 1, 1, 1)), np.array([[0], [0]]), np.array([1, 1]), npages=1, page_size=2)
