"""Where a row or a key of a sequence lies in the logical arrays of a case: ragged, padded or in pages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verify.dense import dense_sequences
from verify.problem import AttentionProblem

Array = NDArray[Any]
Index = tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A query row and a key that it sees."""

    sequence: int
    head: int
    """Query head."""
    row: int
    key: int


def row_index(problem: AttentionProblem, sequence: int, row: int) -> Index:
    """Index of a query row in q, out, dout, dq."""
    return (problem.cu_seqlens_q[sequence] + row,) if problem.cu_seqlens_q is not None else (sequence, row)


def key_index(problem: AttentionProblem, arrays: Mapping[str, Array], sequence: int, key: int) -> Index:
    """Index of a key in k, v, dk, dv; every sequence at once where they share one."""
    if problem.cu_seqlens_k is not None:
        return (problem.cu_seqlens_k[sequence] + key,)
    if problem.page_size:
        return (int(arrays["page_table"][sequence, key // problem.page_size]), key % problem.page_size)
    return (slice(None) if problem.layout == "broadcast" else sequence, key)


def visible_pair(problem: AttentionProblem, arrays: Mapping[str, Array]) -> Pair | None:
    """A pair in the middle of the visible ones of the first sequence that has any; None where no row sees a key."""
    for part in dense_sequences(problem, arrays):
        shape = (part.nheads, part.seqlen_q, part.seqlen_k)
        if 0 in shape:
            continue
        keep = part.keep
        seen = np.ones(shape, dtype=bool) if keep is None else np.broadcast_to(keep, shape)
        places = np.argwhere(seen)
        if len(places):
            head, row, key = (int(x) for x in places[len(places) // 2])
            return Pair(sequence=part.index, head=head, row=row, key=key)
    return None
