"""What is asked of an attention kernel: shapes, dtype, mask, bias and layout. No values, no arrays, no I/O."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from verify.dtypes import STORAGE_DTYPES
from verify.errors import require

ALIGNMENTS = ("bottom_right", "top_left")
PATTERNS = ("none", "boolean", "block_sparse")
BIASES = ("none", "additive", "alibi")
LAYOUTS = ("bshd", "bhsd", "packed_qkv", "sliced", "broadcast", "offset")
"""Layouts whose head vectors are dense, which is what libraries take."""
EVERY_LAYOUT = (*LAYOUTS, "strided")
Window = tuple[int | None, int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionProblem:
    """One attention problem. Shapes: q (batch, seqlen_q, nheads, head_dim), k (batch, seqlen_k, nheads_kv, head_dim),
    v (batch, seqlen_k, nheads_kv, head_dim_v); packed as (total, nheads, head_dim) when cu_seqlens are given.

    Raises
    ------
    UsageError
        For an impossible combination; the message names the field, its value and the expectation.
    """

    batch: int = 1
    seqlen_q: int = 16
    """Query rows of a sequence; the longest one when ragged."""
    seqlen_k: int = 16
    """Keys of a sequence; the longest one when ragged, the padded length when seqlens_k is given."""
    nheads: int = 1
    nheads_kv: int = 1
    """Key/value heads; query head h reads head h // (nheads // nheads_kv)."""
    head_dim: int = 64
    head_dim_v: int = 64
    dtype: str = "fp32"
    """Storage dtype of q, k, v, dout, out and the gradients."""
    softmax_scale: float = 0.125
    """Factor on the scores, resolved (never None); default_scale(head_dim) is 1/sqrt(head_dim)."""
    causal: bool = False
    alignment: str = "bottom_right"
    """Diagonal of causal, window and ALiBi when seqlen_q != seqlen_k."""
    window: Window | None = None
    """(left, right) keys visible on either side of the diagonal; None = unbounded on that side."""
    pattern: str = "none"
    """Extra keep-mask given as data: none, boolean (per element), block_sparse (per block)."""
    keep_fraction: float = 0.75
    """Share of visible elements (or blocks) that the pattern keeps."""
    block_size: tuple[int, int] = (16, 16)
    """(rows, keys) of a block of the block_sparse pattern."""
    bias: str = "none"
    bias_broadcast: tuple[bool, bool] = (False, False)
    """(batch, heads): True where the additive bias has extent 1 and is shared."""
    bias_hidden: float = 0.0
    """Share of the elements of an additive bias that are -inf: each hides its key as a mask does."""
    softcap: float = 0.0
    """c of scores = c*tanh(scores/c); 0 = none."""
    sink: bool = False
    """One extra logit a head in the softmax denominator, with value 0."""
    dropout_p: float = 0.0
    cu_seqlens_q: tuple[int, ...] | None = None
    """Ragged: cumulative lengths, batch+1 entries from 0. Both or none of cu_seqlens_q and cu_seqlens_k."""
    cu_seqlens_k: tuple[int, ...] | None = None
    seqlens_k: tuple[int, ...] | None = None
    """Valid keys of each padded sequence (KV cache); keys beyond are padding."""
    page_size: int = 0
    """Keys a page of a paged KV cache; 0 = contiguous. Needs seqlens_k."""
    layout: str = "bshd"
    """Memory layout: bshd, bhsd, packed_qkv, sliced (gaps between rows), broadcast (stride 0 over the batch of k, v),
    offset (unaligned base), strided (gaps between the elements of a head vector)."""

    def __post_init__(self) -> None:
        _check_shapes(self)
        _check_features(self)
        _check_lengths(self)

    @property
    def group(self) -> int:
        """Query heads that share one key/value head."""
        return self.nheads // self.nheads_kv

    @property
    def is_ragged(self) -> bool:
        return self.cu_seqlens_q is not None

    @property
    def total_q(self) -> int:
        """Query rows over all sequences."""
        return self.cu_seqlens_q[-1] if self.cu_seqlens_q is not None else self.batch * self.seqlen_q

    @property
    def total_k(self) -> int:
        """Keys over all sequences, padding included."""
        return self.cu_seqlens_k[-1] if self.cu_seqlens_k is not None else self.batch * self.seqlen_k

    def lengths(self, sequence: int) -> tuple[int, int]:
        """(valid query rows, valid keys) of one sequence of the batch."""
        if self.cu_seqlens_q is not None and self.cu_seqlens_k is not None:
            starts = (self.cu_seqlens_q[sequence], self.cu_seqlens_k[sequence])
            return self.cu_seqlens_q[sequence + 1] - starts[0], self.cu_seqlens_k[sequence + 1] - starts[1]
        return self.seqlen_q, self.seqlens_k[sequence] if self.seqlens_k is not None else self.seqlen_k


def default_scale(head_dim: int) -> float:
    """1/sqrt(head_dim), the customary softmax scale (Vaswani et al. 2017, eq. 1)."""
    return 1.0 / math.sqrt(head_dim)


def _check_shapes(p: AttentionProblem) -> None:
    for name in ("batch", "seqlen_q", "seqlen_k"):
        value = getattr(p, name)
        require(isinstance(value, int) and value >= 0, name, value, "an integer >= 0")
    for name in ("nheads", "nheads_kv", "head_dim", "head_dim_v"):
        value = getattr(p, name)
        require(isinstance(value, int) and value >= 1, name, value, "an integer >= 1")
    require(p.batch >= 1, "batch", p.batch, "an integer >= 1")
    require(p.nheads % p.nheads_kv == 0, "nheads", p.nheads, f"a multiple of nheads_kv={p.nheads_kv}")
    require(p.dtype in STORAGE_DTYPES, "dtype", p.dtype, "one of " + ", ".join(STORAGE_DTYPES))


def _check_features(p: AttentionProblem) -> None:
    scale_ok = math.isfinite(p.softmax_scale) and p.softmax_scale > 0
    require(scale_ok, "softmax_scale", p.softmax_scale, "a finite number > 0")
    require(p.alignment in ALIGNMENTS, "alignment", p.alignment, "one of " + ", ".join(ALIGNMENTS))
    require(p.pattern in PATTERNS, "pattern", p.pattern, "one of " + ", ".join(PATTERNS))
    require(p.bias in BIASES, "bias", p.bias, "one of " + ", ".join(BIASES))
    require(p.layout in EVERY_LAYOUT, "layout", p.layout, "one of " + ", ".join(EVERY_LAYOUT))
    hidden_ok = 0.0 <= p.bias_hidden <= 1.0 and (p.bias_hidden == 0.0 or p.bias == "additive")
    require(hidden_ok, "bias_hidden", p.bias_hidden, "a number in [0, 1], and 0 without an additive bias")
    require(0.0 <= p.keep_fraction <= 1.0, "keep_fraction", p.keep_fraction, "a number in [0, 1]")
    require(0.0 <= p.dropout_p < 1.0, "dropout_p", p.dropout_p, "a number in [0, 1)")
    require(math.isfinite(p.softcap) and p.softcap >= 0, "softcap", p.softcap, "a finite number >= 0")
    require(min(p.block_size) >= 1, "block_size", p.block_size, "two integers >= 1")
    for side in p.window or ():
        require(side is None or side >= 0, "window", p.window, "integers >= 0 or None")


def _check_lengths(p: AttentionProblem) -> None:
    both = (p.cu_seqlens_q is None) == (p.cu_seqlens_k is None)
    require(both, "cu_seqlens_k", p.cu_seqlens_k, "given exactly when cu_seqlens_q is")
    for name, cu, longest in (
        ("cu_seqlens_q", p.cu_seqlens_q, p.seqlen_q),
        ("cu_seqlens_k", p.cu_seqlens_k, p.seqlen_k),
    ):
        if cu is None:
            continue
        require(len(cu) == p.batch + 1 and cu[0] == 0, name, cu, f"{p.batch + 1} entries starting with 0")
        steps = [b - a for a, b in pairwise(cu)]
        require(min(steps) >= 0, name, cu, "non-decreasing entries")
        require(max(steps) == longest, name, cu, f"a longest sequence of {longest}")
    if p.seqlens_k is not None:
        require(not p.is_ragged, "seqlens_k", p.seqlens_k, "no cu_seqlens beside it")
        fits = len(p.seqlens_k) == p.batch and all(0 <= n <= p.seqlen_k for n in p.seqlens_k)
        require(fits, "seqlens_k", p.seqlens_k, f"{p.batch} lengths in [0, seqlen_k={p.seqlen_k}]")
    require(p.page_size >= 0, "page_size", p.page_size, "an integer >= 0")
    require(not p.page_size or p.seqlens_k is not None, "page_size", p.page_size, "seqlens_k given with it")
    plain = p.layout in ("bshd", "sliced", "offset", "strided") or not (p.is_ragged or p.page_size)
    require(plain, "layout", p.layout, "bshd, sliced, offset or strided for ragged or paged inputs")
    packable = p.layout != "packed_qkv" or (p.seqlen_q == p.seqlen_k and p.nheads == p.nheads_kv)
    packable = packable and (p.layout != "packed_qkv" or p.head_dim == p.head_dim_v)
    require(packable, "layout", p.layout, "equal seqlens, heads and head dims for packed_qkv")
