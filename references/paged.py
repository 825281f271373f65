"""Paged keys and values: sequences scattered over fixed-size pages, found through a page table.

Moves numbers only. Entries of the table and slots of a page beyond a sequence's length are never read.
"""

from __future__ import annotations

from typing import Any

import numpy

from references.options import Array


def gather_pages(pages: Array, page_table: Array, seqlens_k: Array, *, xp: Any = numpy) -> Array:
    """Padded keys or values from pages.

    Parameters
    ----------
    pages : array, shape (npages, page_size, nheads_kv, dim)
    page_table : int array, shape (batch, max_pages)
        Page of each stretch of page_size tokens. Entries past a sequence's last page may hold anything.
    seqlens_k : int array, shape (batch,)

    Returns
    -------
    array, shape (batch, max(seqlens_k), nheads_kv, dim)
        Same dtype as pages; slack is zero.

    Raises
    ------
    ValueError
        A length needs more pages than the table has, or a used entry names no page.
    """
    page_size = _check_pages(pages.shape)
    table, lengths = _check_table(page_table, seqlens_k, pages.shape[0], page_size)
    padded = xp.zeros((len(lengths), max(lengths, default=0), *pages.shape[2:]), dtype=pages.dtype)
    for index, length in enumerate(lengths):
        for number, start in enumerate(range(0, length, page_size)):
            count = min(page_size, length - start)
            padded[index, start : start + count] = pages[table[index][number], :count]
    return padded


def scatter_pages(
    padded: Array,
    page_table: Array,
    seqlens_k: Array,
    *,
    npages: int,
    page_size: int,
    fill: float = 0.0,
    xp: Any = numpy,
) -> Array:
    """Pages from padded keys or values: the inverse of `gather_pages`.

    Parameters
    ----------
    padded : array, shape (batch, >= max(seqlens_k), nheads_kv, dim)
    page_table, seqlens_k : see `gather_pages`; used entries must not name a page twice
    fill : float
        Value of every slot that no sequence uses; NaN makes a kernel that reads one visible.

    Returns
    -------
    array, shape (npages, page_size, nheads_kv, dim), same dtype as padded
    """
    _check_pages((npages, page_size, *padded.shape[2:]))
    table, lengths = _check_table(page_table, seqlens_k, npages, page_size)
    _check_padded(padded, lengths)
    used = [page for row, n in zip(table, lengths, strict=True) for page in row[: -(-n // page_size)]]
    if len(set(used)) != len(used):
        raise ValueError(f"page_table: pages {sorted(used)}, expected each used page once")
    pages = xp.full((npages, page_size, *padded.shape[2:]), fill, dtype=padded.dtype)
    for index, length in enumerate(lengths):
        for number, start in enumerate(range(0, length, page_size)):
            count = min(page_size, length - start)
            pages[table[index][number], :count] = padded[index, start : start + count]
    return pages


def add_to_pages(
    padded: Array, page_table: Array, seqlens_k: Array, *, npages: int, page_size: int, xp: Any = numpy
) -> Array:
    """Gradient of pages from the gradient of padded keys or values: the adjoint of `gather_pages`.

    Parameters
    ----------
    padded : float array, shape (batch, >= max(seqlens_k), nheads_kv, dim)
    page_table, seqlens_k : see `gather_pages`; a page may serve several sequences, whose terms are added

    Returns
    -------
    array, shape (npages, page_size, nheads_kv, dim), same dtype as padded; unused slots are zero
    """
    _check_pages((npages, page_size, *padded.shape[2:]))
    table, lengths = _check_table(page_table, seqlens_k, npages, page_size)
    _check_padded(padded, lengths)
    pages = xp.zeros((npages, page_size, *padded.shape[2:]), dtype=padded.dtype)
    for index, length in enumerate(lengths):
        for number, start in enumerate(range(0, length, page_size)):
            count = min(page_size, length - start)
            pages[table[index][number], :count] += padded[index, start : start + count]
    return pages


def _check_padded(padded: Array, lengths: list[int]) -> None:
    longest = max(lengths, default=0)
    if padded.shape[0] != len(lengths) or padded.shape[1] < longest:
        raise ValueError(f"padded: shape {tuple(padded.shape)}, expected batch {len(lengths)}, seqlen >= {longest}")


def _check_pages(shape: tuple[int, ...]) -> int:
    if len(shape) != 4 or shape[1] < 1:
        raise ValueError(f"pages: shape {tuple(shape)}, expected (npages, page_size >= 1, nheads_kv, dim)")
    return shape[1]


def _check_table(page_table: Array, seqlens_k: Array, npages: int, page_size: int) -> tuple[list[list[int]], list[int]]:
    table, lengths = page_table.tolist(), [int(n) for n in seqlens_k.tolist()]
    if page_table.ndim != 2 or len(table) != len(lengths):
        raise ValueError(f"page_table: shape {tuple(page_table.shape)}, expected ({len(lengths)}, max_pages)")
    for index, (row, length) in enumerate(zip(table, lengths, strict=True)):
        if not 0 <= length <= len(row) * page_size:
            raise ValueError(
                f"seqlens_k[{index}]: {length}, expected 0 to {len(row) * page_size}, which {len(row)} pages hold"
            )
        used = row[: -(-length // page_size)]
        if any(not 0 <= page < npages for page in used):
            raise ValueError(f"page_table[{index}]: {used}, expected page numbers in [0, {npages})")
    return table, lengths
