"""`doctor`: what works on this machine, what is missing, and the command that adds it."""

from __future__ import annotations

from rich.console import Console

from verify.candidates import builtin_names, load
from verify.environment import Diagnosis, diagnose


def doctor_command() -> bool:
    """Print one line a subject; say whether the harness itself can run."""
    console = Console()
    lines = (*diagnose(), *candidate_lines())
    for line in lines:
        mark = "ok     " if line.ok else "missing"
        console.print(f"{mark}  {line.subject:<23}{line.text}", soft_wrap=True, highlight=False, markup=False)
    return all(line.ok or not line.required for line in lines)


def candidate_lines() -> list[Diagnosis]:
    """Each built-in candidate: available, or why not."""
    reasons = {name: load(name).unavailable() for name in builtin_names()}
    return [Diagnosis(subject=name, ok=reason is None, text=reason or "available") for name, reason in reasons.items()]
