"""`template`: a commented starting file for a user's kernel, which runs right away."""

from __future__ import annotations

from importlib.resources import files

from verify.errors import require

STYLES = {"torch": "torch_kernel.py.txt", "numpy": "numpy_kernel.py.txt", "cu": "cuda_kernel.py.txt"}
"""Style -> file in verify/templates."""


def template_command(*, style: str) -> None:
    """Print the starting file of a style.

    Raises
    ------
    UsageError
        Unknown style.
    """
    print(template_text(style), end="")


def template_text(style: str) -> str:
    """The starting file of a style: torch or numpy (a function), cu (a CUDA source with its launch)."""
    require(style in STYLES, "style", style, "one of " + ", ".join(STYLES))
    return (files("verify") / "templates" / STYLES[style]).read_text()
