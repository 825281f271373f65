"""The catalogue of mutants: patches of the sources in TOML files, patches of the launcher in `launches.py`."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from verify.detection.mutant import Mutant, Patch
from verify.detection.mutants.launches import MUTANTS
from verify.errors import require

FILES = ("masks", "rows", "scores", "precision", "gradients", "memory", "order", "plain")
"""One file a family of kinds."""


@cache
def catalogue() -> dict[str, Mutant]:
    """Every mutant by name, in a fixed order."""
    found: dict[str, Mutant] = {}
    for mutant in (*_of_files(), *MUTANTS):
        require(mutant.name not in found, "mutant", mutant.name, "a name that occurs once")
        found[mutant.name] = mutant
    return found


def mutant_named(name: str) -> Mutant:
    """The mutant of that name.

    Raises
    ------
    UsageError
        For an unknown name.
    """
    known = catalogue()
    require(name in known, "mutant", name, f"one of the {len(known)} names in verify/detection/mutants")
    return known[name]


def _of_files() -> Iterator[Mutant]:
    for name in FILES:
        path = Path(__file__).parent / f"{name}.toml"
        for entry in tomllib.loads(path.read_text())["mutant"]:
            yield _mutant(entry)


def _mutant(entry: dict[str, Any]) -> Mutant:
    patches = tuple(Patch(**patch) for patch in entry.pop("patches"))
    return Mutant(patches=patches, **entry)
