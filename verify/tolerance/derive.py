"""From the inputs, the fp64 reference and the declared arithmetic to the bound of every output. Sees no candidate.

Cuts the work into blocks so that memory stays linear in the sequence length: rows against all keys (out, lse, dq,
dbias), then all rows (dsink) against keys (dk, dv). A sequence that fits one block is computed once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from verify.contract import Arithmetic
from verify.dense import DenseSequence, Float64, dense_sequences, take_outputs
from verify.dtypes import FP32, FloatFormat, float_format
from verify.errors import require
from verify.problem import AttentionProblem
from verify.tolerance.bound import Bound, assemble
from verify.tolerance.delta_errors import RowErrors, products, row_errors
from verify.tolerance.equal_rows import RowRatios, equal_weights
from verify.tolerance.forward_terms import forward_block
from verify.tolerance.gradient_errors import GradientErrors, gradient_errors
from verify.tolerance.key_terms import key_terms, value_terms
from verify.tolerance.operands import Operands, operands_of
from verify.tolerance.query_terms import bias_terms, query_terms, sink_terms
from verify.tolerance.roundings import CONFIDENCE, Roundings, resolve
from verify.tolerance.scores import RowMaxima, ScoreBlock, score_block
from verify.tolerance.sums import Part, TermSums
from verify.tolerance.terms import Terms

BLOCK_ELEMENTS = 2**18
"""Weights of one block: about forty float32 and five float64 arrays of this size live at once, 50 MiB."""


def derive_bounds(
    problem: AttentionProblem,
    arrays: Mapping[str, NDArray[Any]],
    reference: Mapping[str, Float64],
    arithmetic: Arithmetic,
    *,
    backward: bool,
    with_dlse: bool = False,
    confidence: float = CONFIDENCE,
) -> Mapping[str, Bound]:
    """Bounds of every output in `reference` that a kernel of this arithmetic may not exceed.

    Parameters
    ----------
    problem : AttentionProblem
    arrays : mapping
        Inputs in logical shape, as `verify.candidate.Call` describes them.
    reference : mapping
        fp64 outputs in logical shape: out and lse always, and with `backward` dq, dk, dv (dbias, dsink where present).
    arithmetic : Arithmetic
        What the kernel declares for `problem.dtype`.
    backward : bool
        Also bound the gradients.
    with_dlse : bool
        The backward receives `arrays["dlse"]`.
    confidence : float
        Standard deviations that independent errors may reach.

    Returns
    -------
    mapping
        Name -> Bound.

    Raises
    ------
    UsageError
        If the reference lacks out or lse, or the backward lacks dout.
    """
    for name in ("out", "lse"):
        require(name in reference, "reference", sorted(reference), f"an entry {name}")
    require(not backward or "dout" in arrays, "arrays", sorted(arrays), "dout for the backward")
    names = [name for name in reference if backward or name in ("out", "lse")]
    sums = {name: TermSums(reference[name].shape) for name in names}
    forms = _formats(problem, arithmetic)
    with np.errstate(over="ignore", invalid="ignore", under="ignore", divide="ignore"):
        for sequence in dense_sequences(problem, arrays):
            known = take_outputs(problem, {name: reference[name] for name in names}, sequence)
            _bound_sequence(problem, sequence, known, sums, arithmetic, backward, with_dlse, confidence)
        return {name: assemble(name, reference[name], sums[name], forms[name], confidence) for name in names}


def _formats(problem: AttentionProblem, arithmetic: Arithmetic) -> dict[str, FloatFormat]:
    out = float_format(arithmetic.out_dtype or problem.dtype)
    grad = float_format(arithmetic.grad_dtype or problem.dtype)
    # Sinks are fp32 parameters, and so are their gradients.
    fixed = {"out": out, "lse": float_format(arithmetic.lse_dtype), "dsink": FP32}
    return fixed | dict.fromkeys(("dq", "dk", "dv", "dbias"), grad)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Task:
    """Some heads of one sequence with everything that their blocks need."""

    problem: AttentionProblem
    sequence: DenseSequence
    ops: Operands
    rounds: Roundings
    reference: Mapping[str, Float64]
    """Head-major outputs of the whole sequence."""
    sums: Mapping[str, TermSums]
    """Terms of the whole case, added to in place."""
    backward: bool
    confidence: float

    def add(self, name: str, terms: Terms, place: tuple[slice, ...]) -> None:
        """Add the terms of one block at its place in the head-major output of the sequence."""
        self.sums[name].add(Part(name=name, place=self.sequence.place, block=place, terms=terms))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _RowPass:
    """What the keys need to know of all rows, and the block itself where it spans the whole sequence."""

    maxima: RowMaxima
    rows: RowErrors | None
    block: ScoreBlock | None
    errors: GradientErrors | None


def _bound_sequence(
    problem: AttentionProblem,
    sequence: DenseSequence,
    known: Mapping[str, Float64],
    sums: Mapping[str, TermSums],
    arithmetic: Arithmetic,
    backward: bool,
    with_dlse: bool,
    confidence: float,
) -> None:
    """Add the terms of one sequence."""
    rounds = resolve(problem, sequence, arithmetic)
    for kv_heads in _head_slices(sequence):
        out, lse = known["out"], known["lse"]
        ops = operands_of(sequence, out, lse, kv_heads, rounds, backward=backward, with_dlse=with_dlse)
        task = _Task(
            problem=problem,
            sequence=sequence,
            ops=ops,
            rounds=rounds,
            reference=known,
            sums=sums,
            backward=backward,
            confidence=confidence,
        )
        lines = ops.q.shape[0] * max(1, sequence.seqlen_k)
        passes = [_row_pass(task, rows) for rows in _slices(sequence.seqlen_q, lines)]
        if backward:
            _key_passes(task, passes)


def _row_pass(task: _Task, rows: slice) -> _RowPass:
    """Rows against all keys: out, lse, dq, dbias."""
    ops, rounds = task.ops, task.rounds
    block, maxima = score_block(ops, rounds, rows, slice(0, ops.k.shape[1]), None, task.confidence)
    forward = forward_block(ops, rounds, block, maxima, task.confidence)
    task.add("out", forward.out, (ops.heads, rows))
    task.add("lse", forward.lse, (ops.heads, rows))
    if not task.backward or ops.dout is None:
        return _RowPass(maxima=maxima, rows=None, block=None, errors=None)
    product = products(ops, block, ops.dout)
    row = row_errors(ops, rounds, block, maxima, forward, product, task.confidence)
    errors = gradient_errors(ops, rounds, block, maxima, row, product, task.confidence)
    reference = task.reference["dq"][ops.heads, rows]
    task.add("dq", query_terms(ops, rounds, block, maxima, row, errors, forward, reference), (ops.heads, rows))
    if "dbias" in task.sums:
        shared = task.problem.bias_broadcast
        planes = (task.problem.batch if shared[0] else 1) * (task.problem.nheads if shared[1] else 1)
        task.add("dbias", bias_terms(block, row, errors, rounds, planes), (ops.heads, rows))
    if rows != slice(0, ops.q.shape[1]):
        # The keys come in other blocks; keeping these would take memory quadratic in the length.
        return _RowPass(maxima=maxima, rows=row, block=None, errors=None)
    return _RowPass(maxima=maxima, rows=row, block=block, errors=errors)


def _key_passes(task: _Task, passes: list[_RowPass]) -> None:
    """All rows: dsink, and against blocks of keys dk and dv."""
    ops, rounds = task.ops, task.rounds
    rows_known = [done.rows for done in passes if done.rows is not None]
    if not rows_known or ops.dout is None:
        return
    maxima, row = _join([done.maxima for done in passes]), _join(rows_known)
    alike = equal_weights(ops, maxima)
    if "dsink" in task.sums:
        summed = (task.problem.total_q, task.problem.batch)
        task.add("dsink", sink_terms(ops, rounds, maxima, row, alike, summed), (ops.heads,))
    whole = slice(0, ops.q.shape[1])
    lines = ops.q.shape[0] * max(1, ops.q.shape[1])
    key_slices = list(_slices(ops.k.shape[1], lines))
    for keys in key_slices:
        block, errors = passes[0].block, passes[0].errors
        if len(key_slices) > 1 or block is None or errors is None:
            block, _ = score_block(ops, rounds, whole, keys, maxima, task.confidence)
            product = products(ops, block, ops.dout)
            errors = gradient_errors(ops, rounds, block, maxima, row, product, task.confidence)
        counts = _key_counts(ops, maxima, block)
        kv_heads = slice(ops.heads.start // ops.group, ops.heads.stop // ops.group)
        place, ratios = (kv_heads, keys), RowRatios.of(ops, block, alike)
        task.add("dk", key_terms(ops, rounds, block, row, errors, task.reference["dk"][place], counts, ratios), place)
        values = value_terms(ops, rounds, block, errors, ops.dout, task.reference["dv"][place], counts, ratios)
        task.add("dv", values, place)


def _key_counts(ops: Operands, maxima: RowMaxima, block: ScoreBlock) -> Float64:
    """Rows of the group that see each key: (kv heads, keys, 1)."""
    alive = maxima.alive[..., None]
    if block.keep is None:
        everywhere = ops.stack(alive).sum(axis=1, dtype=np.float64)
        return np.repeat(everywhere[..., None], block.keys.stop - block.keys.start, axis=1)
    counts: Float64 = ops.stack(alive & block.keep).sum(axis=1, dtype=np.float64)[..., None]
    return counts


_T = TypeVar("_T", RowMaxima, RowErrors)


def _join(parts: list[_T]) -> _T:
    """Concatenate row facts of successive blocks of rows."""
    if len(parts) == 1:
        return parts[0]
    joined: dict[str, Any] = {}
    for item in fields(parts[0]):
        values = [getattr(part, item.name) for part in parts]
        joined[item.name] = values[0] if np.ndim(values[0]) == 0 else np.concatenate(values, axis=1)
    return replace(parts[0], **joined)


def _head_slices(sequence: DenseSequence) -> Iterator[slice]:
    """All heads at once if their weights fit one block, else one key/value head at a time."""
    kv_heads = int(sequence.k.shape[0])
    together = sequence.nheads * sequence.seqlen_q * sequence.seqlen_k <= BLOCK_ELEMENTS
    step = kv_heads if together else 1
    for start in range(0, kv_heads, step):
        yield slice(start, start + step)


def _slices(length: int, line: int) -> Iterator[slice]:
    """Cut `length` into slices of at most BLOCK_ELEMENTS / line, at least one long."""
    step = max(1, BLOCK_ELEMENTS // line)
    for start in range(0, length, step):
        yield slice(start, min(start + step, length))
