"""The candidate protocol: a Call goes in, a Reply comes out. No candidate is imported here and none is judged."""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from verify.contract import Contract
from verify.problem import AttentionProblem
from verify.verdict import Status

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request to a candidate.

    `arrays` holds NumPy views in logical shape whose strides are the physical layout of the case:
    q (batch, seqlen_q, nheads, head_dim), k, v likewise, or packed (total, nheads, head_dim) when ragged, or pages
    (npages, page_size, nheads_kv, head_dim); and, where the problem has them: dout like out, dlse (batch, nheads,
    seqlen_q) or (nheads, total_q) fp32, mask (batch, nheads, seqlen_q, seqlen_k) bool, block_mask (batch, nheads,
    row blocks, key blocks) bool, bias (batch|1, nheads|1, seqlen_q, seqlen_k) in the storage dtype, alibi_slopes
    (nheads,) fp32, sink (nheads,) fp32, dropout_keep (batch, nheads, seqlen_q, seqlen_k) bool, cu_seqlens_q,
    cu_seqlens_k (batch+1,) int32, seqlens_k (batch,) int32, page_table (batch, max pages) int32.
    """

    problem: AttentionProblem
    arrays: Mapping[str, Array]
    backward: bool
    """Gradients are asked for as well."""
    with_dlse: bool = False
    """The backward also receives dlse."""
    seed: int = 0
    """Seed of the candidate's own randomness (dropout)."""
    probe_order: bool = False
    """The order of its work is looked at: on a GPU its inputs arrive late on a stream of its own
    (verify.candidates.device_streams), and everywhere its outputs are read twice."""
    prefill: str = "nan"
    """What output buffers that the harness makes hold beforehand: nan or finite (verify.candidates.output_buffers)."""
    splits: int = 0
    """Parts into which the range of keys is split, one of the declared split_counts; 0 = as the candidate likes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Which implementation really ran (row: backend, dtype, fallback)."""

    backend: str
    """Name of the backend that ran, as the library calls it."""
    asked: str = ""
    """Backend that was asked for; empty = the same."""
    fallback_reason: str = ""
    """Why another one than the asked ran; empty = no fallback."""
    details: Mapping[str, str] = field(default_factory=dict)
    """Further facts: device, library version, tile sizes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Outputs of one call: out like dout; lse (batch, nheads, seqlen_q) or (nheads, total_q), natural log; dq, dk, dv
    like q, k, v; dbias like bias; dsink (nheads,); dropout_keep when the candidate drew its own mask."""

    outputs: Mapping[str, Array]
    route: Route


class RefusedError(Exception):
    """The candidate declines a call and says why (a limit of the library, not a fault of the adapter)."""


class KernelFaultError(Exception):
    """The candidate ran, and its own instruments report a fault (race, access out of bounds, deadlock, ...)."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status = status


@runtime_checkable
class Candidate(Protocol):
    """An implementation of attention under test."""

    name: str
    contract: Contract

    def unavailable(self) -> str | None:
        """Why it cannot run on this machine, or None when it can."""

    def run(self, call: Call) -> Reply:
        """Compute the outputs; raise RefusedError with the reason where the library declines,
        KernelFaultError for a fault that the candidate's own instruments report."""


def source_hash(candidate: Candidate) -> str:
    """First 12 hex digits of the SHA-256 of the candidate's sources: tells two versions apart.

    The sources are those that `candidate.sources()` names, where it has that method; else the files of the package that
    defines its class, or of that module alone when the package is `verify.candidates` itself.
    """
    named = getattr(candidate, "sources", None)
    paths = tuple(named()) if named is not None else _module_files(type(candidate))
    digest = hashlib.sha256(candidate.name.encode())
    for path in sorted(paths):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


@functools.cache
def _module_files(cls: type) -> tuple[Path, ...]:
    source = inspect.getsourcefile(cls)
    if source is None:
        return ()
    path = Path(source)
    shared = path.parent.name == "candidates" or not (path.parent / "__init__.py").exists()
    return (path,) if shared else tuple(path.parent.glob("*.py"))


def output_shapes(problem: AttentionProblem, arrays: Mapping[str, Array]) -> dict[str, tuple[int, ...]]:
    """Expected logical shape of every output that the problem has."""
    p = problem
    rows = (p.total_q,) if p.is_ragged else (p.batch, p.seqlen_q)
    lse = (p.nheads, p.total_q) if p.is_ragged else (p.batch, p.nheads, p.seqlen_q)
    shapes = {"out": (*rows, p.nheads, p.head_dim_v), "lse": lse}
    shapes |= {f"d{name}": arrays[name].shape for name in ("q", "k", "v")}
    shapes |= {f"d{name}": arrays[name].shape for name in ("bias", "sink") if name in arrays}
    return shapes


def contiguous(array: Array) -> Array:
    """C-contiguous copy, or the array itself when it already is."""
    return np.ascontiguousarray(array)
