"""Attention written out row by row in fp64: slow, and independent of every kernel and of `references`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from verify.candidate import Array, output_shapes
from verify.problem import AttentionProblem


def plain_attention(p: AttentionProblem, arrays: Mapping[str, Array], *, with_dlse: bool = False) -> dict[str, Array]:
    """Every output of the problem in fp64, in the shapes of the caller."""
    shapes = output_shapes(p, arrays)
    outputs = {name: np.zeros(shape) for name, shape in shapes.items()}
    outputs["lse"][...] = -np.inf
    for sequence in range(p.batch):
        seqlen_q, seqlen_k = p.lengths(sequence)
        for head in range(p.nheads):
            for row in range(seqlen_q):
                keys = [key for key in range(seqlen_k) if visible(p, arrays, sequence, head, row, key)]
                _add_row(p, arrays, outputs, (sequence, head, row), keys, with_dlse)
    return outputs


def visible(p: AttentionProblem, arrays: Mapping[str, Array], sequence: int, head: int, row: int, key: int) -> bool:
    """Whether one row may attend to one key."""
    distance = row + _offset(p, sequence) - key
    left, right = p.window or (None, None)
    if (p.causal and distance < 0) or (left is not None and distance > left):
        return False
    if right is not None and -distance > right:
        return False
    if "mask" in arrays and not arrays["mask"][sequence, head, row, key]:
        return False
    height, width = p.block_size
    return bool("block_mask" not in arrays or arrays["block_mask"][sequence, head, row // height, key // width])


def _add_row(
    p: AttentionProblem,
    arrays: Mapping[str, Array],
    outputs: dict[str, Array],
    where: tuple[int, int, int],
    keys: list[int],
    with_dlse: bool,
) -> None:
    sequence, head, row = where
    at, at_lse, key_at = _row_index(p, sequence, head, row), _lse_index(p, sequence, head, row), _key_index(p, arrays)
    kv_head = head // (p.nheads // p.nheads_kv)
    places = [key_at(sequence, key, kv_head) for key in keys]
    q, dout = arrays["q"][at].astype(float), arrays["dout"][at].astype(float)
    k = np.array([arrays["k"][place] for place in places], dtype=float).reshape(-1, p.head_dim)
    v = np.array([arrays["v"][place] for place in places], dtype=float).reshape(-1, p.head_dim_v)
    sink = arrays["sink"][head : head + 1].astype(float) if "sink" in arrays else np.zeros(0)

    scores, slope = _scores(p, arrays, where, keys, k @ q * p.softmax_scale)
    logits = np.concatenate([scores, sink])
    if not logits.size:
        return
    lse = logits.max() + np.log(np.exp(logits - logits.max()).sum())
    probs = np.exp(scores - lse)
    kept = np.ones(len(keys))
    if "dropout_keep" in arrays:
        kept = arrays["dropout_keep"][sequence, head, row, keys] / (1.0 - p.dropout_p)
    outputs["out"][at], outputs["lse"][at_lse] = (probs * kept) @ v, lse

    dprobs = kept * (v @ dout)
    common = (float(arrays["dlse"][at_lse]) if with_dlse else 0.0) - probs @ dprobs
    dscores = probs * (dprobs + common)
    if sink.size:
        outputs["dsink"][head] += np.exp(sink[0] - lse) * common
    if "bias" in arrays:
        batch_at, head_at = (min(i, n - 1) for i, n in zip((sequence, head), arrays["bias"].shape, strict=False))
        np.add.at(outputs["dbias"], (batch_at, head_at, row, keys), dscores)
    draw = dscores * slope * p.softmax_scale
    outputs["dq"][at] += draw @ k
    for index, place in enumerate(places):
        outputs["dk"][place] += draw[index] * q
        outputs["dv"][place] += probs[index] * kept[index] * dout


def _scores(
    p: AttentionProblem, arrays: Mapping[str, Array], where: tuple[int, int, int], keys: list[int], raw: Array
) -> tuple[Array, Array]:
    """(scores after softcap and bias, their derivative by the raw scores)."""
    sequence, head, row = where
    scores, slope = raw, np.ones_like(raw)
    if p.softcap > 0:
        scores, slope = p.softcap * np.tanh(raw / p.softcap), 1.0 - np.tanh(raw / p.softcap) ** 2
    if "bias" in arrays:
        shape = (p.batch, p.nheads, p.seqlen_q, p.seqlen_k)
        scores = scores + np.broadcast_to(arrays["bias"], shape)[sequence, head, row, keys].astype(float)
    if "alibi_slopes" in arrays:
        distance = np.abs(row + _offset(p, sequence) - np.array(keys, dtype=int))
        scores = scores - float(arrays["alibi_slopes"][head]) * distance
    return scores, slope


def _offset(p: AttentionProblem, sequence: int) -> int:
    seqlen_q, seqlen_k = p.lengths(sequence)
    return seqlen_k - seqlen_q if p.alignment == "bottom_right" else 0


def _row_index(p: AttentionProblem, sequence: int, head: int, row: int) -> tuple[int, ...]:
    return (sequence, row, head) if p.cu_seqlens_q is None else (p.cu_seqlens_q[sequence] + row, head)


def _lse_index(p: AttentionProblem, sequence: int, head: int, row: int) -> tuple[int, ...]:
    return (sequence, head, row) if p.cu_seqlens_q is None else (head, p.cu_seqlens_q[sequence] + row)


def _key_index(p: AttentionProblem, arrays: Mapping[str, Array]) -> Callable[[int, int, int], tuple[Any, ...]]:
    if p.page_size:
        table = arrays["page_table"]
        return lambda sequence, key, head: (table[sequence, key // p.page_size], key % p.page_size, head)
    if p.cu_seqlens_k is not None:
        starts = p.cu_seqlens_k
        return lambda sequence, key, head: (starts[sequence] + key, head)
    return lambda sequence, key, head: (sequence, key, head)
