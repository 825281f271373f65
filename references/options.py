"""What one attention computes besides its operands: scalar options and the optional arrays.

Holds no arithmetic. Options and extras are read-only; shapes are checked where they meet q, k and v (`shapes.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

Array: TypeAlias = Any
"""An array of NumPy or of a namespace that follows it (CuPy)."""

ALIGNMENTS = ("bottom_right", "top_left")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionOptions:
    """Scalars of one attention problem."""

    softmax_scale: float
    """Factor on Q K^T."""
    causal: bool = False
    """Row i sees key j only if j <= i + offset."""
    alignment: str = "bottom_right"
    """Which corner the diagonal of causal, window and ALiBi passes: offset = seqlen_k - seqlen_q, or 0 for top_left."""
    window: tuple[int | None, int | None] | None = None
    """(left, right): row i sees i + offset - left <= j <= i + offset + right. None on a side leaves it unbounded."""
    softcap: float = 0.0
    """c in c*tanh(score/c), after scaling and before bias. 0 means none."""
    dropout_p: float = 0.0
    """Probability of dropping a weight; kept weights are multiplied by 1/(1-p). Needs extras.dropout_keep."""

    def __post_init__(self) -> None:
        if not math.isfinite(self.softmax_scale):
            raise ValueError(f"softmax_scale: {self.softmax_scale!r}, expected a finite number")
        if self.alignment not in ALIGNMENTS:
            raise ValueError(f"alignment: {self.alignment!r}, expected one of {ALIGNMENTS}")
        if not (math.isfinite(self.softcap) and self.softcap >= 0):
            raise ValueError(f"softcap: {self.softcap!r}, expected a finite number >= 0 (0 means none)")
        if not 0 <= self.dropout_p < 1:
            raise ValueError(f"dropout_p: {self.dropout_p!r}, expected 0 <= p < 1")
        if self.window is not None and (len(self.window) != 2 or any(w is not None and w < 0 for w in self.window)):
            raise ValueError(f"window: {self.window!r}, expected (left, right), each None or an integer >= 0")

    def diagonal(self, seqlen_q: int, seqlen_k: int) -> int:
        """Offset of the diagonal: row i is level with key i + offset."""
        return seqlen_k - seqlen_q if self.alignment == "bottom_right" else 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttentionExtras:
    """Optional arrays of one attention problem. "Broadcastable" follows NumPy: sizes 1 and missing leading axes."""

    mask: Array | None = None
    """bool, broadcastable to (batch, nheads, seqlen_q, seqlen_k). True: the row may attend to the key."""
    block_mask: Array | None = None
    """bool (batch | 1, nheads | 1, ceil(seqlen_q / block_q), ceil(seqlen_k / block_k)). True: the block is visible."""
    block_size: tuple[int, int] | None = None
    """(block_q, block_k) of block_mask."""
    bias: Array | None = None
    """Float, broadcastable to (batch, nheads, seqlen_q, seqlen_k), added to the scores after softcap. -inf hides."""
    alibi_slopes: Array | None = None
    """(nheads,) or (batch, nheads). Adds -slope * |i + offset - j|."""
    sink: Array | None = None
    """(nheads,): logit of one more column whose value is 0."""
    dropout_keep: Array | None = None
    """bool (batch, nheads, seqlen_q, seqlen_k). False: the weight is dropped."""
    seqlens_q: Array | None = None
    """int (batch,): valid rows of q. Later rows give out = 0, lse = -inf, gradients 0."""
    seqlens_k: Array | None = None
    """int (batch,): valid rows of k and v. Later rows are never read; their gradients are 0."""


NO_EXTRAS = AttentionExtras()
