"""Schedules of this project's CUDA kernels on the CPU backend as variants of a candidate: they are fuzzed too."""

from __future__ import annotations

import os

SCHEDULED_PREFIXES = ("cuda_", "mutant:")
"""Candidates that take the variants `reversed` and `random<seed>`."""
RANDOM_SCHEDULES = 4
"""Random orders of the threads that a campaign draws from; each keeps a process of its own."""


def schedule_variants(candidate: str) -> tuple[str, ...]:
    """The candidate and its other schedules, the plain one first; the candidate alone where it has none or names one.

    On a GPU the hardware chooses the schedule.
    """
    base, variant = _split(candidate)
    on_gpu = os.environ.get("ATTN_VERIFY_DEVICE", "cpu") == "gpu"
    if not candidate.startswith(SCHEDULED_PREFIXES) or variant or on_gpu:
        return (candidate,)
    orders = ("reversed", *(f"random{seed}" for seed in range(1, RANDOM_SCHEDULES + 1)))
    return (candidate, *(f"{base}:{order}" for order in orders))


def simpler_schedules(candidate: str) -> tuple[str, ...]:
    """Schedules to try before the one that failed."""
    base, variant = _split(candidate)
    if not candidate.startswith(SCHEDULED_PREFIXES):
        return ()
    if variant.startswith("random"):
        return (base, f"{base}:reversed")
    return (base,) if variant == "reversed" else ()


def _split(candidate: str) -> tuple[str, str]:
    """Name and variant; the name of a mutant has a colon of its own."""
    parts = candidate.split(":")
    own = 2 if candidate.startswith("mutant:") else 1
    return ":".join(parts[:own]), ":".join(parts[own:])
