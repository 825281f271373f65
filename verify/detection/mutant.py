"""What a mutant is: an honest kernel with one seeded fault, as a patch of its source, description or launches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernels.backend import Launch
from kernels.kernel import CUDA_DIR, Kernel
from kernels.registry import KERNELS
from verify.detection.reports import url_of
from verify.errors import require

KINDS = (
    "mask-boundary", "masked-row", "scale-bias-sink", "layout-stride", "index-overflow", "special-values", "dispatch",
    "precision", "varlen-offset", "race", "causal-alignment", "window", "lse", "tile-range", "gqa-head-map",
    "softmax-rescale", "bwd-recompute", "aliasing-stale", "uninit-memory", "bwd-mismatch", "head-dim",
    "nondeterminism", "dropout",
)  # fmt: skip
"""Taxonomy of public attention-kernel bugs. Two further kinds, split-merge and paged-cache, need kernels that combine
splits and walk page tables; there are none here yet, so nothing of those kinds can be seeded."""
DIRECTIONS = ("forward", "backward", "both")

KernelPatch = Callable[[Kernel], Kernel]
LaunchPatch = Callable[[Launch], Launch | None]
"""None = the launch does not happen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """One replacement in one file. The anchor must occur exactly once."""

    file: str
    """Name of a source or header in the folder of the CUDA sources."""
    anchor: str
    replacement: str

    def apply(self, text: str) -> str:
        """The patched text.

        Raises
        ------
        UsageError
            The anchor does not occur exactly once.
        """
        found = text.count(self.anchor)
        require(found == 1, f"anchor in {self.file}", self.anchor, f"text that occurs exactly once, found {found}")
        return text.replace(self.anchor, self.replacement)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One seeded fault."""

    name: str
    kernel: str
    """Name of the honest kernel."""
    kind: str
    direction: str
    """Where the fault acts: forward, backward or both."""
    cause: str
    """Key of the cause that an explanation should name."""
    report: str
    """Id of the public report that it models, or of the list of classic mistakes."""
    patches: tuple[Patch, ...] = ()
    kernel_patch: KernelPatch | None = None
    launch_patch: Callable[[], LaunchPatch] | None = None
    """Makes a patch with a state of its own for each instance of the mutant."""
    below_rounding: bool = False
    """The fault is smaller than the rounding of the outputs: counted apart."""
    equivalent: str = ""
    """Proof that no output can differ beyond the order of a sum; empty = not equivalent."""

    def __post_init__(self) -> None:
        require(self.kernel in KERNELS, "kernel", self.kernel, "one of " + ", ".join(KERNELS))
        require(self.kind in KINDS, "kind", self.kind, "one of " + ", ".join(KINDS))
        require(self.direction in DIRECTIONS, "direction", self.direction, "one of " + ", ".join(DIRECTIONS))
        changes = bool(self.patches) + (self.kernel_patch is not None) + (self.launch_patch is not None)
        require(changes >= 1, "patches", self.patches, "at least one change")

    @property
    def counted(self) -> bool:
        """Counts towards the score: neither equivalent nor below the rounding of the outputs."""
        return not self.equivalent and not self.below_rounding

    @property
    def url(self) -> str:
        """Address of the public report; empty for a classic mistake."""
        return url_of(self.report)

    def files(self) -> dict[str, str]:
        """Name -> text of every file that the patches change, all patches of a file applied.

        Raises
        ------
        UsageError
            An anchor does not occur exactly once.
        """
        changed: dict[str, str] = {}
        for patch in self.patches:
            text = changed.get(patch.file) or source_text(CUDA_DIR / patch.file)
            changed[patch.file] = patch.apply(text)
        return changed


def source_text(path: Path) -> str:
    """Text of a kernel source."""
    return path.read_text()


def patches(file: str, changes: Sequence[tuple[str, str]]) -> tuple[Patch, ...]:
    """Patches of one file."""
    return tuple(Patch(file=file, anchor=anchor, replacement=replacement) for anchor, replacement in changes)
