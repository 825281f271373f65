"""Schedules of this project's CUDA kernels on the CPU backend as variants of a candidate: they are fuzzed too."""

from __future__ import annotations

import os

SCHEDULED_PREFIXES = ("cuda_",)
"""Candidates that take the variants `reversed` and `random<seed>`."""
RANDOM_SCHEDULES = 4
"""Random orders of the threads that a campaign draws from; each keeps a process of its own."""


def schedule_variants(candidate: str) -> tuple[str, ...]:
    """The candidate and its other schedules, the plain one first; the candidate alone where it has none or names one.

    On a GPU the hardware chooses the schedule.
    """
    scheduled = candidate.startswith(SCHEDULED_PREFIXES) and ":" not in candidate
    if not scheduled or os.environ.get("ATTN_VERIFY_DEVICE", "cpu") == "gpu":
        return (candidate,)
    orders = ("reversed", *(f"random{seed}" for seed in range(1, RANDOM_SCHEDULES + 1)))
    return (candidate, *(f"{candidate}:{order}" for order in orders))


def simpler_schedules(candidate: str) -> tuple[str, ...]:
    """Schedules to try before the one that failed."""
    base, _, variant = candidate.partition(":")
    if not base.startswith(SCHEDULED_PREFIXES):
        return ()
    if variant.startswith("random"):
        return (base, f"{base}:reversed")
    return (base,) if variant == "reversed" else ()
