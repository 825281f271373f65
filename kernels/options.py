"""What one attention computes besides q, k and v: scalars and optional arrays, as the launcher takes them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kernels.backend import Array
from kernels.dropout import check_seed, drop_threshold

ALIGNMENTS = ("bottom_right", "top_left")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Options:
    """Options of one attention. Arrays live where q lives; "broadcastable" means that an axis may have size 1."""

    softmax_scale: float | None = None
    """Factor on Q K^T; None = 1 / sqrt(head_dim)."""
    causal: bool = False
    """Row i sees key j only if j <= i + diagonal."""
    alignment: str = "bottom_right"
    """diagonal = seqlen_k - seqlen_q of the sequence, or 0 for top_left. Holds for causal, window and ALiBi."""
    window: tuple[int | None, int | None] = (None, None)
    """(left, right) keys visible around the diagonal; None = unbounded on that side."""
    softcap: float = 0.0
    """c in c * tanh(score / c), after scaling and before bias; 0 = none."""
    keep_mask: Array | None = None
    """bool or uint8, broadcastable to (batch, nheads, seqlen_q, seqlen_k); true = visible."""
    block_mask: Array | None = None
    """bool or uint8, broadcastable in batch and nheads: one flag for each block of pairs."""
    block_size: tuple[int, int] | None = None
    """(rows, keys) of a block of block_mask; need not be a multiple of the tile."""
    bias: Array | None = None
    """Storage dtype or fp32, broadcastable to (batch, nheads, seqlen_q, seqlen_k); -inf hides the pair."""
    alibi_slopes: Array | None = None
    """fp32 (nheads,) or (batch, nheads): adds -slope * |i + diagonal - j|."""
    sink: Array | None = None
    """Storage dtype or fp32 (nheads,): logit of one more column whose value is zero."""
    dropout_p: float = 0.0
    """Probability of dropping a weight; the kept ones are multiplied by 1 / (1 - p)."""
    dropout_seed: int = 0
    """64-bit key of the generator."""
    dropout_offset: int = 0
    """32-bit stream number under the seed."""
    cu_seqlens_q: Array | None = None
    """int32 (batch + 1,): packed layout, sequence b has rows cu[b] to cu[b + 1]. With cu_seqlens_k or not at all."""
    cu_seqlens_k: Array | None = None
    max_seqlen_q: int | None = None
    """Longest packed sequence; rows beyond it are not computed. None reads cu_seqlens_q: a wait for the GPU."""
    max_seqlen_k: int | None = None
    seqlens_q: Array | None = None
    """int32 (batch,): rows in use. Later rows give out = 0, lse = -inf, gradients 0."""
    seqlens_k: Array | None = None
    """int32 (batch,): keys in use. Later ones are never read; their gradients are 0."""

    def __post_init__(self) -> None:
        if self.softmax_scale is not None and not math.isfinite(self.softmax_scale):
            raise ValueError(f"softmax_scale: {self.softmax_scale!r}, expected a finite number or None")
        if self.alignment not in ALIGNMENTS:
            raise ValueError(f"alignment: {self.alignment!r}, expected one of {', '.join(ALIGNMENTS)}")
        if len(self.window) != 2 or any(side is not None and side < 0 for side in self.window):
            raise ValueError(f"window: {self.window!r}, expected (left, right), each None or an integer >= 0")
        if not (math.isfinite(self.softcap) and self.softcap >= 0):
            raise ValueError(f"softcap: {self.softcap!r}, expected a finite number >= 0 (0 means none)")
        if (self.block_mask is None) != (self.block_size is None):
            raise ValueError(f"block_size: {self.block_size!r}, expected it exactly with block_mask")
        if self.block_size is not None and min(self.block_size) < 1:
            raise ValueError(f"block_size: {self.block_size!r}, expected two integers >= 1")
        if (self.cu_seqlens_q is None) != (self.cu_seqlens_k is None):
            raise ValueError("cu_seqlens_k: expected exactly when cu_seqlens_q is given")
        drop_threshold(self.dropout_p)
        check_seed(self.dropout_seed, self.dropout_offset)
