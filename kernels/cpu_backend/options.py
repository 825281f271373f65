"""Closed choices of the CPU backend: how a kernel is built and scheduled, and how mma.sync computes."""

from __future__ import annotations

import dataclasses
import enum


class Build(enum.Enum):
    """Compiler settings of one build of a kernel."""

    FAST = "fast"
    """-O2 with fused multiply-add contraction, as nvcc does by default."""
    NOFMA = "nofma"
    """-O2 without contraction: shows results that depend on it."""
    CHECKED = "checked"
    """-O1 with every memory access checked: bounds, races, uninitialised reads, alignment. Each launch runs twice."""


class Checks(enum.IntEnum):
    """What one compiled image of a kernel checks."""

    NOTHING = 0
    MEMORY = 1
    """Accesses to shared and global memory."""
    LOCALS = 2
    """Reads of local variables that nothing has written."""


class MmaModel(enum.IntEnum):
    """Arithmetic of mma.sync."""

    IDEAL = 0
    """Products and sum in float64, rounded once to nearest."""
    AMPERE = 1
    """Groups of 8 terms (4 for tf32), 24 fraction bits below the largest term, truncation. Also Ada."""
    HOPPER = 2
    """One group of all terms, 25 fraction bits below the largest term, truncation."""


class Policy(enum.IntEnum):
    """Which of the threads that can run is run next, and in which order blocks run."""

    FIFO = 0
    REVERSED = 1
    RANDOM = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Schedule:
    """Order in which threads and blocks run. The same value always gives the same order."""

    policy: Policy
    seed: int = 0


FIFO = Schedule(Policy.FIFO)
REVERSED = Schedule(Policy.REVERSED)


def random(seed: int) -> Schedule:
    """Schedule that picks the next thread at random, and a random order of blocks."""
    return Schedule(Policy.RANDOM, seed)
