"""The order in which the cases are tried on every mutant, measured once: a greedy set cover of kills per second."""

from __future__ import annotations

ORDER: tuple[str, ...] = ()
"""Ids of narrowed fp32 cases, best first. Cases that the grid no longer has are passed over."""
