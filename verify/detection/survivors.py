"""Why the mutants that no check kills survive."""

from __future__ import annotations

from collections.abc import Mapping

REASONS: Mapping[str, str] = {
    "row_offset_in_32_bits": "needs a row offset of 2^31 elements: no case of the grid has a stride that large",
    "guard_below_lowest_dropped": "differs only where every visible score of a row is -inf, from an infinity in q or k",
}
"""Mutant -> reason."""
UNEXPLAINED = "not explained"


def reason_of(name: str) -> str:
    """Why a mutant survives, or that nobody knows."""
    return REASONS.get(name, UNEXPLAINED)
