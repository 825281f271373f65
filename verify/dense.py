"""One sequence of a case as dense head-major fp64 arrays: the only place that cuts ragged or paged arrays apart.

Widens values exactly and computes nothing with them. What hides a key comes from `references.masks`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from references.masks import RowBlock, bias_rows, keep_rows
from references.options import AttentionExtras, AttentionOptions
from verify.problem import AttentionProblem

Array = NDArray[Any]
Float64 = NDArray[np.float64]
Bool = NDArray[np.bool_]
EVERYTHING = slice(None)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DenseSequence:
    """One sequence without padding. Heads lead, so a product over rows and columns is a plain matmul."""

    index: int
    """Place in the batch."""
    q: Float64
    """(nheads, seqlen_q, head_dim)."""
    k: Float64
    """(nheads_kv, seqlen_k, head_dim)."""
    v: Float64
    """(nheads_kv, seqlen_k, head_dim_v)."""
    dout: Float64 | None
    """(nheads, seqlen_q, head_dim_v)."""
    dlse: Float64 | None
    """(nheads, seqlen_q)."""
    sink: Float64 | None
    """(nheads,) logits."""
    options: AttentionOptions
    extras: AttentionExtras
    place: SequencePlace
    """Where its outputs lie."""

    @property
    def pages(self) -> NDArray[np.int64] | None:
        """Pages of the KV cache that hold the keys, in order; None when not paged."""
        return self.place.pages

    @property
    def seqlen_q(self) -> int:
        return int(self.q.shape[1])

    @property
    def seqlen_k(self) -> int:
        return int(self.k.shape[1])

    @property
    def nheads(self) -> int:
        return int(self.q.shape[0])

    @property
    def group(self) -> int:
        """Query heads that share one key/value head."""
        return int(self.q.shape[0] // self.k.shape[0])

    @property
    def softmax_scale(self) -> float:
        return self.options.softmax_scale

    @property
    def softcap(self) -> float:
        return self.options.softcap

    @property
    def dropout_p(self) -> float:
        return self.options.dropout_p

    @property
    def keep(self) -> Bool | None:
        """Which keys each row may attend to: bool (1 | nheads, seqlen_q, seqlen_k), or None when nothing is hidden."""
        return self.keep_block()

    @property
    def bias(self) -> Float64 | None:
        """Additive bias and ALiBi: fp64 (1 | nheads, seqlen_q, seqlen_k), or None."""
        return self.bias_block()

    @property
    def dropout_keep(self) -> Bool | None:
        """Which weights dropout leaves: bool (nheads, seqlen_q, seqlen_k), or None."""
        return self.dropout_block()

    def keep_block(self, heads: slice = EVERYTHING, rows: slice = EVERYTHING, keys: slice = EVERYTHING) -> Bool | None:
        """`keep` of a block, without building the whole."""
        block = self._block(heads, rows, keys)
        keep = keep_rows(self.options, self.extras, block)
        return None if keep is None else _full_plane(keep, block)

    def bias_block(
        self, heads: slice = EVERYTHING, rows: slice = EVERYTHING, keys: slice = EVERYTHING
    ) -> Float64 | None:
        """`bias` of a block, without building the whole."""
        block = self._block(heads, rows, keys)
        bias = bias_rows(self.options, self.extras, block)
        return None if bias is None else _full_plane(bias, block)

    def dropout_block(
        self, heads: slice = EVERYTHING, rows: slice = EVERYTHING, keys: slice = EVERYTHING
    ) -> Bool | None:
        """`dropout_keep` of a block, without copying the whole."""
        if self.extras.dropout_keep is None:
            return None
        block = self._block(heads, rows, keys)
        kept: Bool = self.extras.dropout_keep[block.batch, block.heads, block.rows, block.keys]
        return kept

    def _block(self, heads: slice, rows: slice, keys: slice) -> RowBlock:
        return RowBlock(
            batch=self.index,
            heads=slice(*heads.indices(self.nheads)[:2]),
            rows=slice(*rows.indices(self.seqlen_q)[:2]),
            keys=slice(*keys.indices(self.seqlen_k)[:2]),
            seqlen_q=self.seqlen_q,
            seqlen_k=self.seqlen_k,
        )


def attention_options(problem: AttentionProblem) -> AttentionOptions:
    """The scalars of a problem in the form that the reference takes."""
    return AttentionOptions(
        softmax_scale=problem.softmax_scale,
        causal=problem.causal,
        alignment=problem.alignment,
        window=problem.window,
        softcap=problem.softcap,
        dropout_p=problem.dropout_p,
    )


def attention_extras(problem: AttentionProblem, arrays: Mapping[str, Array]) -> AttentionExtras:
    """The optional arrays of a call in the form that `references.masks` takes, for one sequence at a time."""
    names = ("mask", "block_mask", "bias", "alibi_slopes", "sink", "dropout_keep")
    blocks = problem.block_size if "block_mask" in arrays else None
    return AttentionExtras(**{name: arrays.get(name) for name in names}, block_size=blocks)


def dense_sequences(problem: AttentionProblem, arrays: Mapping[str, Array]) -> Iterator[DenseSequence]:
    """Every sequence of a case, in the order of the batch.

    Parameters
    ----------
    problem : AttentionProblem
    arrays : mapping
        Inputs in logical shape, as `verify.candidate.Call` describes them. dout and dlse may be absent.

    Yields
    ------
    DenseSequence
        fp64 copies that never alias the inputs.
    """
    options, extras = attention_options(problem), attention_extras(problem, arrays)
    sink = arrays["sink"].astype(np.float64) if "sink" in arrays else None
    for index in range(problem.batch):
        place = SequencePlace.of(problem, index, _pages(problem, arrays, index))
        yield DenseSequence(
            index=index,
            q=_widen(place.rows(arrays["q"])),
            k=_widen(place.keys(arrays["k"])),
            v=_widen(place.keys(arrays["v"])),
            dout=_widen(place.rows(arrays["dout"])) if "dout" in arrays else None,
            dlse=place.row_scalars(arrays["dlse"]).astype(np.float64) if "dlse" in arrays else None,
            sink=sink,
            options=options,
            extras=extras,
            place=place,
        )


def take_outputs(problem: AttentionProblem, outputs: Mapping[str, Array], sequence: DenseSequence) -> dict[str, Array]:
    """Parts of a case's outputs that belong to one sequence, head-major.

    Parameters
    ----------
    outputs : mapping
        Any of out, lse, dq, dk, dv, dbias, dsink in logical shape (`verify.candidate.output_shapes`).

    Returns
    -------
    dict
        out, dq (nheads, seqlen_q, dim); lse (nheads, seqlen_q); dk, dv (nheads_kv, seqlen_k, dim);
        dbias (1 | nheads, seqlen_q, seqlen_k); dsink (nheads,), the sum over all sequences. dtypes are kept.
    """
    return {name: sequence.place.take(name, array) for name, array in outputs.items()}


def put_outputs(
    problem: AttentionProblem,
    outputs: Mapping[str, Array],
    sequence: DenseSequence,
    values: Mapping[str, Array],
) -> None:
    """Add head-major values of one sequence to the case's outputs in place; the inverse of `take_outputs`.

    Parameters
    ----------
    outputs : mapping
        Writable arrays in logical shape, zero (or, for shared bias, sink and pages, a partial sum) beforehand.
    values : mapping
        Arrays shaped as `take_outputs` returns them; a name without an entry in `outputs` is an error.
    """
    for name, value in values.items():
        sequence.place.add(name, outputs[name], value)


@dataclass(frozen=True, slots=True, kw_only=True)
class SequencePlace:
    """Where one sequence lies in the logical arrays of a case."""

    index: int
    """Place in the batch."""
    row_part: tuple[int | slice, ...]
    """Index of its rows in an array (batch, rows, heads, dim) or packed (total, heads, dim)."""
    key_part: tuple[int | slice, ...]
    """Index of its keys likewise; of no use where they lie in pages."""
    scalar_part: tuple[int | slice, ...]
    """Index of (heads, rows) in lse."""
    seqlen_q: int
    seqlen_k: int
    page_size: int
    pages: NDArray[np.int64] | None

    @staticmethod
    def of(problem: AttentionProblem, index: int, pages: NDArray[np.int64] | None) -> SequencePlace:
        """Place of sequence number `index`."""
        seqlen_q, seqlen_k = problem.lengths(index)
        rows, keys = slice(0, seqlen_q), slice(0, seqlen_k)
        row_part: tuple[int | slice, ...] = (index, rows)
        key_part: tuple[int | slice, ...] = (index, keys)
        scalar_part: tuple[int | slice, ...] = (index, EVERYTHING, rows)
        if problem.cu_seqlens_q is not None and problem.cu_seqlens_k is not None:
            rows = slice(*problem.cu_seqlens_q[index : index + 2])
            row_part, scalar_part = (rows,), (EVERYTHING, rows)
            key_part = (slice(*problem.cu_seqlens_k[index : index + 2]),)
        return SequencePlace(
            index=index,
            row_part=row_part,
            key_part=key_part,
            scalar_part=scalar_part,
            seqlen_q=seqlen_q,
            seqlen_k=seqlen_k,
            page_size=problem.page_size,
            pages=pages,
        )

    def rows(self, array: Array) -> Array:
        """(rows, heads, dim) view."""
        return array[self.row_part]

    def keys(self, array: Array) -> Array:
        """(keys, heads, dim); a copy when paged."""
        if self.pages is not None:
            return array[self.pages].reshape(-1, *array.shape[2:])[: self.seqlen_k]
        return array[self.key_part]

    def row_scalars(self, array: Array) -> Array:
        """(heads, rows) view of lse or dlse."""
        return array[self.scalar_part]

    def plane(self, array: Array) -> Array:
        """(1 | heads, rows, keys) view of dbias."""
        return array[0 if array.shape[0] == 1 else self.index, :, : self.seqlen_q, : self.seqlen_k]

    def take(self, name: str, array: Array) -> Array:
        """The part of one output, head-major."""
        if name in ("out", "dq"):
            return array[self.row_part].swapaxes(0, 1)
        if name in ("dk", "dv"):
            return self.keys(array).swapaxes(0, 1)
        if name == "dsink":
            return array
        return array[self.scalar_part] if name == "lse" else self.plane(array)

    def add(self, name: str, array: Array, value: Array) -> None:
        """Add a head-major part to one output in place."""
        if name in ("dk", "dv") and self.pages is not None:
            self._add_pages(array, value.swapaxes(0, 1))
            return
        view = self.take(name, array)
        view += value

    def _add_pages(self, array: Array, keys_first: Array) -> None:
        page = self.page_size
        for place, number in enumerate([] if self.pages is None else self.pages):
            part = keys_first[place * page : (place + 1) * page]
            array[number, : len(part)] += part


def _pages(problem: AttentionProblem, arrays: Mapping[str, Array], index: int) -> NDArray[np.int64] | None:
    if not problem.page_size:
        return None
    needed = -(-problem.lengths(index)[1] // problem.page_size)
    return arrays["page_table"][index, :needed].astype(np.int64)


def _widen(rows_first: Array) -> Float64:
    return np.ascontiguousarray(rows_first.swapaxes(0, 1), dtype=np.float64)


def _full_plane(array: Array, block: RowBlock) -> Array:
    shape = (array.shape[0], block.rows.stop - block.rows.start, block.keys.stop - block.keys.start)
    return np.broadcast_to(array, shape)
