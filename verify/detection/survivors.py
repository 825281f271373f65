"""Why the mutants that no check kills survive."""

from __future__ import annotations

from collections.abc import Mapping

REASONS: Mapping[str, str] = {
    "row_offset_in_32_bits": (
        "needs a row offset of 2^31 elements: a session copies and compares what lies in the gaps of an array, which "
        "would be 4 GiB and more"
    ),
    "guard_below_lowest_dropped": (
        "gives the empty row for NaN where an infinity in q or k makes every visible score of a row -inf: kernels may "
        "do either, and no check asks for one of them"
    ),
}
"""Mutant -> reason."""
UNEXPLAINED = "not explained"


def reason_of(name: str) -> str:
    """Why a mutant survives, or that nobody knows."""
    return REASONS.get(name, UNEXPLAINED)
