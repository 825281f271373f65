"""Why the mutants that no check kills survive."""

from __future__ import annotations

from collections.abc import Mapping

REASONS: Mapping[str, str] = {}
"""Mutant -> reason."""
UNEXPLAINED = "not explained"


def reason_of(name: str) -> str:
    """Why a mutant survives, or that nobody knows."""
    return REASONS.get(name, UNEXPLAINED)
