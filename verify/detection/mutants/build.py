"""Short constructors for the catalogue."""

from __future__ import annotations

from typing import Any

from verify.detection.mutant import Mutant, patches
from verify.detection.reports import CLASSIC

__all__ = ["CLASSIC", "textbook", "tiled"]


def tiled(
    name: str, kind: str, cause: str, report: str, file: str, *changes: tuple[str, str], direction: str = "forward", **facts: Any
) -> Mutant:
    """A mutant of `cuda_tiled` by replacements in one file."""
    return Mutant(
        name=name,
        kernel="cuda_tiled",
        kind=kind,
        direction=direction,
        cause=cause,
        report=report,
        patches=patches(file, changes),
        **facts,
    )


def textbook(
    name: str, kind: str, cause: str, report: str, *changes: tuple[str, str], direction: str = "forward", **facts: Any
) -> Mutant:
    """A mutant of `cuda_textbook` by replacements in its own source."""
    return Mutant(
        name=f"textbook_{name}",
        kernel="cuda_textbook",
        kind=kind,
        direction=direction,
        cause=cause,
        report=report,
        patches=patches("textbook.cu", changes),
        **facts,
    )
