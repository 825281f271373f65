"""What a kernel is: its source, its passes, its tiles and the facts it declares. Nothing is compiled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

CUDA_DIR = Path(__file__).parent / "cuda"
"""Folder of the sources and their common headers."""

STORAGE_TYPES: Mapping[str, str] = {"fp32": "float", "fp16": "__half", "bf16": "__nv_bfloat16"}
"""Storage dtype -> value of the macro STORAGE."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One choice of the tile macros."""

    q: int
    """TILE_Q: query rows of a score tile."""
    k: int
    """TILE_K: keys of a score tile."""
    threads: int
    """THREADS of a block."""


class Grid(Enum):
    """Launch geometry of a pass; `geometry.py` turns it into numbers."""

    QUERY_TILES = "query tiles, nheads, batch"
    KEY_TILES = "key tiles, nheads_kv, batch"
    BIAS_TILES = "bias column tiles, bias row tiles, bias slices"
    QUERY_ROWS = "rows by warps, nheads, batch"
    PAIRS = "seqlen_q x seqlen_k, nheads, batch"
    OUT_ELEMENTS = "seqlen_q x head_dim_v, nheads, batch"
    DQ_ELEMENTS = "seqlen_q x head_dim, nheads, batch"
    DK_ELEMENTS = "seqlen_k x head_dim, nheads_kv, batch"
    DV_ELEMENTS = "seqlen_k x head_dim_v, nheads_kv, batch"
    BIAS_ELEMENTS = "bias rows x bias columns, bias heads, bias batch"
    HEADS = "nheads"


class Shared(Enum):
    """Dynamic shared memory of a pass; `tiles.py` turns it into bytes."""

    NONE = "none"
    THREADS = "one float a thread"
    FORWARD = "Q, K, V and P tiles"
    BACKWARD = "Q, dO, K, V, P and dS tiles, lse and delta rows"
    BACKWARD_BIAS = "the same with a tile of sums"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One launch out of a kernel's sequence."""

    entry: str
    """Name of the `extern "C"` function."""
    grid: Grid
    shared: Shared = Shared.NONE
    needs: str | None = None
    """Option without which the pass is left out: bias or sink."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Direction:
    """The passes of forward or backward, in order, and what they need."""

    passes: tuple[Pass, ...]
    workspaces: tuple[str, ...]
    """Fields of the parameter struct that point to fp32 scratch memory."""
    tiles: Mapping[int, tuple[Tile, ...]]
    """Head-dim bucket -> tiles, the preferred one first. Bucket 0: the head dim is a run-time size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Problems that a kernel takes."""

    dtypes: tuple[str, ...]
    """Storage dtypes."""
    features: frozenset[str]
    """Masks, score modifiers and shapes beyond plain attention."""
    max_head_dim: int | None
    """Largest head_dim and head_dim_v; None = any."""
    backward: bool
    takes_dlse: bool
    """The backward accepts a gradient of lse."""
    deterministic: bool
    """Repeated runs give the same bits."""
    nan_behind_mask: bool
    """Keys and queries hidden by a mask may hold NaN or infinity without effect."""
    any_strides: bool
    """Every axis of q, k, v, out and their gradients may have any stride."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """Every rounding point of a kernel; the same for all storage dtypes of the kernels here."""

    accumulate: str
    """Sums of products: rne = fp32, rounded to nearest after each product; rtz = truncated (tensor cores)."""
    accumulate_chunk: int
    """Products summed exactly between two roundings."""
    scores_dtype: str
    dprobs_dtype: str
    probs_dtype: str
    """Format of P when it meets V in the forward."""
    probs_backward_dtype: str
    """Format of the recomputed P when it meets dO."""
    dscores_dtype: str
    """Format of dS when it meets K and Q."""
    probs_normalised: bool
    """P is divided by the row sum before it meets V (true), or O is divided afterwards (false)."""
    scale_on: str
    """Where softmax_scale enters the forward: scores or q."""
    scale_roundings: int
    """fp32 roundings in the scaling: of the constant and of the product."""
    bias_roundings: int
    """fp32 roundings in adding the bias."""
    alibi_roundings: int
    """Of slope * distance and of its subtraction."""
    softcap_roundings: int
    """Of s / c and of c * tanh, beside the error of tanh."""
    dropout_roundings: int
    """Of the constant 1 / (1 - p) and of its product with P."""
    exponential: str
    """exp(s - m), or exp2 = 2^(s c - m c) with c = log2(e)."""
    exp_ulp: float
    """Largest error of the exponential in fp32 ulp."""
    log_ulp: float
    tanh_ulp: float
    """Softcap only."""
    online: bool
    """Softmax with a running maximum and rescaled sums, once a key tile."""
    argmax_exact: bool
    """The weight of the running maximum is exactly 1."""
    delta_from: str
    """delta = rowsum(dO * O) from the stored, rounded `out`."""
    lse_dtype: str
    lse_log: str
    """Unit of lse: natural or log2."""
    flushes_subnormals: bool
    """fp32 subnormals become zero."""
    order: str
    """Order of every sum over keys or queries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One version of attention."""

    name: str
    summary: str
    """One line: how it works."""
    source: Path
    forward: Direction
    backward: Direction
    capabilities: Capabilities
    arithmetic: Arithmetic

    def direction(self, name: str) -> Direction:
        """`forward` or `backward`."""
        if name not in ("forward", "backward"):
            raise ValueError(f"direction: {name!r}, expected forward or backward")
        return self.forward if name == "forward" else self.backward

    @property
    def entries(self) -> tuple[str, ...]:
        """Every entry point of the source."""
        return tuple(step.entry for step in self.forward.passes + self.backward.passes)
