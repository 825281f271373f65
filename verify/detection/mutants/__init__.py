"""The catalogue of mutants by name."""

from __future__ import annotations

from importlib import import_module

from verify.detection.mutant import Mutant
from verify.errors import require

MODULES = ("masks", "rows", "scores", "precision", "gradients", "memory", "order", "launches", "plain")
"""One module a family of kinds."""


def catalogue() -> dict[str, Mutant]:
    """Every mutant by name, in a fixed order."""
    found: dict[str, Mutant] = {}
    for module in MODULES:
        for mutant in import_module(f"verify.detection.mutants.{module}").MUTANTS:
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
