"""Why the mutants that no check kills survive."""

from __future__ import annotations

from collections.abc import Mapping

REASONS: Mapping[str, str] = {
    "row_offset_in_32_bits": "needs a row offset of 2^31 elements: no case of the grid has a stride that large",
    "last_axis_assumed_dense": "no layout of the grid has gaps within a head vector",
    "minus_infinity_bias_visible": "differs only under a bias of -inf, which no recipe draws",
    "guard_below_lowest_dropped": "differs only where every visible score of a row is -inf",
}
"""Mutant -> reason."""
UNEXPLAINED = "not explained"


def reason_of(name: str) -> str:
    """Why a mutant survives, or that nobody knows."""
    return REASONS.get(name, UNEXPLAINED)
