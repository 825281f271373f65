"""Simpler problems than a given one: fewer features, then smaller shapes. Pure; minimise asks whether they still fail.

Every step is simpler by construction, so a greedy search over them ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from itertools import accumulate
from typing import Any

from verify.case import Recipe
from verify.errors import UsageError
from verify.problem import AttentionProblem, default_scale

Step = Callable[[AttentionProblem], Iterator[AttentionProblem]]

_DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(AttentionProblem)}
_PLAIN: tuple[tuple[str, ...], ...] = (
    ("cu_seqlens_q", "cu_seqlens_k"),
    ("seqlens_k", "page_size"),
    ("page_size",),
    ("layout",),
    ("pattern", "keep_fraction", "block_size"),
    ("bias", "bias_broadcast", "bias_hidden"),
    ("bias_hidden",),
    ("dropout_p",),
    ("softcap",),
    ("sink",),
    ("window",),
    ("causal",),
    ("alignment",),
    ("bias_broadcast",),
    ("keep_fraction",),
    ("block_size",),
)
"""Fields that are put back to their defaults together."""
_LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16)
_HEAD_DIMS = (1, 2, 4, 8, 16, 32, 64)
_HEADS = ((1, 1), (2, 2), (2, 1), (3, 1), (4, 2))
SIMPLE_RECIPES = (Recipe.of("integers"), Recipe.of("normal"))


def simpler_problems(problem: AttentionProblem) -> Iterator[AttentionProblem]:
    """Problems that are one step simpler, the largest steps first."""
    for step in _STEPS:
        yield from step(problem)


def _changed(problem: AttentionProblem, **changes: Any) -> Iterator[AttentionProblem]:
    """The problem with other fields, when that is a problem and another one."""
    if "head_dim" in changes and problem.softmax_scale == default_scale(problem.head_dim):
        changes.setdefault("softmax_scale", default_scale(changes["head_dim"]))
    try:
        other = replace(problem, **changes)
    except UsageError:
        return
    if other != problem:
        yield other


def _all_at_once(problem: AttentionProblem) -> Iterator[AttentionProblem]:
    """No feature at all: one head and channel, then as they are. Saves most steps where each costs a process."""
    plain = {name: _DEFAULTS[name] for names in _PLAIN for name in names}
    smallest = {"batch": 1, "nheads": 1, "nheads_kv": 1, "head_dim": 1, "head_dim_v": 1}
    yield from _changed(problem, **plain, **smallest, softmax_scale=default_scale(1))
    yield from _changed(problem, **plain)


def _fewer_features(problem: AttentionProblem) -> Iterator[AttentionProblem]:
    for names in _PLAIN:
        yield from _changed(problem, **{name: _DEFAULTS[name] for name in names})
    yield from _changed(problem, softmax_scale=default_scale(problem.head_dim))


def _fewer_sequences(problem: AttentionProblem) -> Iterator[AttentionProblem]:
    batch = problem.batch
    if batch == 1:
        return
    kept = [[sequence] for sequence in range(batch)]
    if batch > 2:
        kept += [[s for s in range(batch) if s != left_out] for left_out in range(batch)]
    for sequences in kept:
        yield from _only_sequences(problem, sequences)


def _only_sequences(p: AttentionProblem, sequences: Sequence[int]) -> Iterator[AttentionProblem]:
    lengths = [p.lengths(sequence) for sequence in sequences]
    if p.is_ragged:
        yield from _with_lengths(p, [rows for rows, _ in lengths], [keys for _, keys in lengths])
        return
    seqlens = tuple(keys for _, keys in lengths) if p.seqlens_k is not None else None
    yield from _changed(p, batch=len(sequences), seqlens_k=seqlens)


def _fewer_heads(problem: AttentionProblem) -> Iterator[AttentionProblem]:
    sizes = [*_HEADS, (problem.nheads, problem.nheads)] if problem.group == 1 else [*_HEADS, (problem.group, 1)]
    for nheads, nheads_kv in sizes:
        if (nheads, nheads_kv) < (problem.nheads, problem.nheads_kv) and nheads <= problem.nheads:
            yield from _changed(problem, nheads=nheads, nheads_kv=nheads_kv)


def _shorter(problem: AttentionProblem) -> Iterator[AttentionProblem]:
    """Shorter sequences: both lengths, the rows, the keys; ragged ones one by one."""
    if problem.is_ragged:
        yield from _shorter_ragged(problem)
        return
    sq, sk = problem.seqlen_q, problem.seqlen_k
    if sq == sk:
        for length in _below(sq, _LENGTHS):
            yield from _resized(problem, length, length)
    for length in _below(sq, _LENGTHS):
        yield from _resized(problem, length, sk)
    for length in _below(sk, _LENGTHS):
        yield from _resized(problem, sq, length)


def _resized(problem: AttentionProblem, rows: int, keys: int) -> Iterator[AttentionProblem]:
    seqlens = problem.seqlens_k
    if seqlens is not None:
        seqlens = tuple(min(length, keys) for length in seqlens)
    yield from _changed(problem, seqlen_q=rows, seqlen_k=keys, seqlens_k=seqlens)


def _shorter_ragged(problem: AttentionProblem) -> Iterator[AttentionProblem]:
    rows = [problem.lengths(sequence)[0] for sequence in range(problem.batch)]
    keys = [problem.lengths(sequence)[1] for sequence in range(problem.batch)]
    for lengths, other in ((rows, keys), (keys, rows)):
        for place, length in enumerate(lengths):
            for shorter in _below(length, _LENGTHS):
                changed = [*lengths[:place], shorter, *lengths[place + 1 :]]
                both = (changed, other) if lengths is rows else (other, changed)
                yield from _with_lengths(problem, *both)


def _with_lengths(problem: AttentionProblem, rows: Sequence[int], keys: Sequence[int]) -> Iterator[AttentionProblem]:
    yield from _changed(
        problem,
        batch=len(rows),
        seqlen_q=max(rows),
        seqlen_k=max(keys),
        cu_seqlens_q=tuple(accumulate(rows, initial=0)),
        cu_seqlens_k=tuple(accumulate(keys, initial=0)),
    )


def _narrower(problem: AttentionProblem) -> Iterator[AttentionProblem]:
    d, dv = problem.head_dim, problem.head_dim_v
    if d != dv:
        yield from _changed(problem, head_dim=min(d, dv), head_dim_v=min(d, dv))
        for dim in _below(dv, _HEAD_DIMS):
            yield from _changed(problem, head_dim_v=dim)
    for dim in _below(d, _HEAD_DIMS):
        yield from _changed(problem, head_dim=dim, head_dim_v=dim if d == dv else dv)


def _smaller_numbers(problem: AttentionProblem) -> Iterator[AttentionProblem]:
    """fp32, small windows and pages, equal sequences."""
    yield from _changed(problem, dtype="fp32")
    if problem.window is not None:
        left, right = problem.window
        for side in (0, 1, 2, 4):
            if left is not None and side < left:
                yield from _changed(problem, window=(side, right))
            if right is not None and side < right:
                yield from _changed(problem, window=(left, side))
    for page in (1, 4, 16):
        if page < problem.page_size:
            yield from _changed(problem, page_size=page)


def _below(value: int, ladder: Sequence[int]) -> Iterator[int]:
    """Values below: rungs of the ladder, a half, one less."""
    tried = sorted({rung for rung in (*ladder, value // 2, value - 1) if 0 < rung < value})
    yield from tried


_STEPS: tuple[Step, ...] = (
    _all_at_once,
    _fewer_features,
    _fewer_sequences,
    _fewer_heads,
    _shorter,
    _narrower,
    _smaller_numbers,
)
