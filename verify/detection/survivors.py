"""Why the mutants that no check kills survive."""

from __future__ import annotations

from collections.abc import Mapping

REASONS: Mapping[str, str] = {
    "row_offset_in_32_bits": "needs a row offset of 2^31 elements: no case of the grid has a stride that large",
    "last_axis_assumed_dense": "no layout of the grid has gaps within a head vector",
    "rows_assumed_dense": "no layout of the grid has a row stride that is no multiple of the head stride and twice it",
    "guard_below_lowest_dropped": "differs only where every visible score of a row is -inf",
    "empty_row_sum_is_one": "differs only where every visible score of a row is -inf",
    "first_query_off_by_one": "a query tile that begins with the first visible query is needed at a key tile's edge",
}
"""Mutant -> reason."""
UNEXPLAINED = "not explained"


def reason_of(name: str) -> str:
    """Why a mutant survives, or that nobody knows."""
    return REASONS.get(name, UNEXPLAINED)
