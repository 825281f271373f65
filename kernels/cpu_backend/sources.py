"""Reads kernel sources: which files they consist of, what they may not use, and the translation unit around them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).parent
DEVICE_DIR = HERE / "device"
"""Headers that stand in for the CUDA compiler's built-ins."""
RUNTIME_DIR = HERE / "runtime"
CUDA_DIR = HERE.parent / "cuda"
"""Include directory of kernel sources."""
PTX_HEADER = CUDA_DIR / "ptx.cuh"

INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


def source_files(source: Path) -> list[Path]:
    """`source` and the project headers that it includes with quotes, directly or not, in the order found."""
    found = [source]
    for file in found:
        for name in INCLUDE.findall(file.read_text()):
            candidates = [(directory / name).resolve() for directory in (file.parent, source.parent, CUDA_DIR)]
            path = next((candidate for candidate in candidates if candidate.is_file()), None)
            if path is not None and path not in found:
                found.append(path)
    return found


def refuse_static_shared(file: Path) -> None:
    """Refuse static ``__shared__``: it would lie outside of the guarded, poisoned window.

    Raises
    ------
    ValueError
        With file and line of the first use.
    """
    if file == PTX_HEADER:
        return
    text = COMMENT.sub(lambda comment: "\n" * comment[0].count("\n"), file.read_text())
    for number, line in enumerate(text.splitlines(), start=1):
        if re.search(r"\b__shared__\b", line):
            raise ValueError(f"{file}:{number}: static __shared__ is not supported, use DYN_SMEM(name) of ptx.cuh")


def translation_unit(source: Path, entries: Sequence[str], defines: Mapping[str, str | int]) -> str:
    """Text that defines the macros, includes the source, and exports a thunk for each entry."""
    lines = [f"#define {name} {value}" for name, value in sorted(defines.items())]
    lines.append(f'#include "{source}"')
    lines += [f"SIMT_ENTRY({entry})" for entry in entries]
    return "\n".join(lines) + "\n"
