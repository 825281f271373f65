"""A second implementation, tiled over keys with an online softmax, that checks `attention.py` and its backward.

Written apart on purpose: it shares no code with them, reads masks element by element, one query head at a time, and is
slow. Inputs must be finite, apart from a bias of -inf.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from references.options import NO_EXTRAS, Array, AttentionExtras, AttentionOptions
from references.results import AttentionResult, Gradients


def attention_blockwise(
    q: Array,
    k: Array,
    v: Array,
    *,
    options: AttentionOptions,
    extras: AttentionExtras = NO_EXTRAS,
    tile: tuple[int, int] = (16, 16),
) -> AttentionResult:
    """Forward attention by tiles of `tile` = (rows, keys); operands and result as in `attention`.

    Notes
    -----
    Per tile: m' = max(m, rowmax S);  l = l e^(m - m') + rowsum e^(S - m');  acc likewise. The sink is the state before
    the first tile: m = sink, l = 1, acc = 0.

    References
    ----------
    Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018, algorithm 3.
    """
    problem = _Problem.of(q, k, v, options, extras)
    out = np.zeros((*q.shape[:3], v.shape[3]))
    lse = np.full((q.shape[0], q.shape[2], q.shape[1]), -np.inf)
    for b, h in problem.heads():
        for i in problem.row_tiles(b, tile[0]):
            out[b, i, h], lse[b, h, i] = _forward_rows(problem, b, h, i, tile[1])
    return AttentionResult(out=out, lse=lse)


def attention_blockwise_backward(
    q: Array,
    k: Array,
    v: Array,
    dout: Array,
    *,
    options: AttentionOptions,
    extras: AttentionExtras = NO_EXTRAS,
    dlse: Array | None = None,
    tile: tuple[int, int] = (16, 16),
) -> Gradients:
    """Gradients by tiles, from P = exp(S - lse) and delta = rowsum(dout * out); operands as in `attention_backward`.

    References
    ----------
    Dao, "FlashAttention-2", 2023, algorithm 2.
    """
    problem = _Problem.of(q, k, v, options, extras)
    result = attention_blockwise(q, k, v, options=options, extras=extras, tile=tile)
    upstream = np.asarray(dout, dtype=np.float64)
    dlse = np.zeros(result.lse.shape) if dlse is None else np.asarray(dlse, dtype=np.float64)
    dq, dk, dv = (np.zeros(x.shape) for x in (q, k, v))
    dbias = np.zeros(problem.full_shape) if extras.bias is not None else None
    dsink = np.zeros(q.shape[2]) if extras.sink is not None else None
    for b, h in problem.heads():
        g = h // problem.group
        for i in problem.row_tiles(b, tile[0]):
            lse, grad_out = result.lse[b, h, i], upstream[b, i, h]
            delta = np.einsum("id,id->i", grad_out, result.out[b, i, h])
            if dsink is not None and extras.sink is not None:
                weight = _exp_difference(np.full((len(i), 1), extras.sink[h], dtype=np.float64), lse)[:, 0]
                dsink[h] += np.dot(weight, dlse[b, h, i] - delta)
            for j in problem.key_tiles(b, tile[1]):
                score, slope = problem.scores(b, h, i, j)
                probs = _exp_difference(score, lse)
                factor = problem.dropout(b, h, i, j)
                dv[b, j, g] += (probs * factor).T @ grad_out
                dscore = probs * (factor * (grad_out @ problem.v[b, j, g].T) + (dlse[b, h, i] - delta)[:, None])
                if dbias is not None:
                    dbias[b, h, i[0] : i[-1] + 1, j[0] : j[-1] + 1] += dscore
                dscore *= slope * options.softmax_scale
                dq[b, i, h] += dscore @ problem.k[b, j, g]
                dk[b, j, g] += dscore.T @ problem.q[b, i, h]
    reduced = None if dbias is None or extras.bias is None else _sum_to_shape(dbias, extras.bias.shape)
    return Gradients(dq=dq, dk=dk, dv=dv, dbias=reduced, dsink=dsink)


def _forward_rows(problem: _Problem, b: int, h: int, i: Array, tile_k: int) -> tuple[Array, Array]:
    """out (rows, head_dim_v) and lse (rows,) of one tile of rows."""
    sink = problem.extras.sink
    m = np.full(len(i), -np.inf if sink is None else np.float64(sink[h]))
    total = np.where(np.isneginf(m), 0.0, 1.0)
    acc = np.zeros((len(i), problem.v.shape[3]))
    for j in problem.key_tiles(b, tile_k):
        score, _ = problem.scores(b, h, i, j)
        new_m = np.maximum(m, score.max(axis=1))
        probs = _exp_difference(score, new_m)
        rescale = _exp_difference(m[:, None], new_m)[:, 0]
        total = total * rescale + probs.sum(axis=1)
        acc = acc * rescale[:, None] + (probs * problem.dropout(b, h, i, j)) @ problem.v[b, j, h // problem.group]
        m = new_m
    seen = total > 0
    divisor = np.where(seen, total, 1.0)
    return acc / divisor[:, None], np.where(seen, m + np.log(divisor), -np.inf)


def _exp_difference(score: Array, level: Array) -> Array:
    """exp(score - level) by rows, 0 where score is -inf, also when level is."""
    shift = np.where(np.isneginf(level), 0.0, level)[:, None]
    return np.exp(score - shift)


def _sum_to_shape(full: Array, shape: tuple[int, ...]) -> Array:
    missing = full.ndim - len(shape)
    summed = full.sum(axis=tuple(range(missing)))
    axes = tuple(axis for axis, n in enumerate(shape) if n == 1 and summed.shape[axis] != 1)
    return summed.sum(axis=axes, keepdims=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Problem:
    """fp64 operands and the rules for one score."""

    q: Array
    k: Array
    v: Array
    options: AttentionOptions
    extras: AttentionExtras
    group: int
    full_shape: tuple[int, int, int, int]

    @classmethod
    def of(cls, q: Array, k: Array, v: Array, options: AttentionOptions, extras: AttentionExtras) -> _Problem:
        batch, seqlen_q, nheads, _ = q.shape
        wide = [np.asarray(x, dtype=np.float64) for x in (q, k, v)]
        return cls(
            q=wide[0],
            k=wide[1],
            v=wide[2],
            options=options,
            extras=extras,
            group=nheads // k.shape[2],
            full_shape=(batch, nheads, seqlen_q, k.shape[1]),
        )

    def heads(self) -> Iterator[tuple[int, int]]:
        return ((b, h) for b in range(self.full_shape[0]) for h in range(self.full_shape[1]))

    def lengths(self, b: int) -> tuple[int, int]:
        ask = self.extras
        seqlen_q = self.full_shape[2] if ask.seqlens_q is None else int(ask.seqlens_q[b])
        seqlen_k = self.full_shape[3] if ask.seqlens_k is None else int(ask.seqlens_k[b])
        return seqlen_q, seqlen_k

    def row_tiles(self, b: int, size: int) -> Iterator[Array]:
        return _tiles(self.lengths(b)[0], size)

    def key_tiles(self, b: int, size: int) -> Iterator[Array]:
        return _tiles(self.lengths(b)[1], size)

    def scores(self, b: int, h: int, i: Array, j: Array) -> tuple[Array, Array]:
        """Final scores (-inf where hidden) and the slope of softcap, both (rows, keys)."""
        score = self.options.softmax_scale * (self.q[b, i, h] @ self.k[b, j, h // self.group].T)
        slope = np.ones(score.shape)
        cap = self.options.softcap
        if cap:
            # 2e/(1 + e^2) with e = exp(-|x|) is 1/cosh(x), and cannot overflow.
            decay = np.exp(-np.abs(score / cap))
            slope = (2 * decay / (1 + decay * decay)) ** 2
            score = cap * np.tanh(score / cap)
        rows, keys = i[:, None], j[None, :]
        if self.extras.bias is not None:
            score = score + self._full(self.extras.bias)[b, h, rows, keys].astype(np.float64)
        level = rows + self._shift(b)
        if self.extras.alibi_slopes is not None:
            slopes = np.broadcast_to(self.extras.alibi_slopes, self.full_shape[:2])
            score = score - np.float64(slopes[b, h]) * np.abs(level - keys)
        return np.where(self._visible(b, h, rows, keys, level), score, -np.inf), slope

    def dropout(self, b: int, h: int, i: Array, j: Array) -> Array:
        if self.extras.dropout_keep is None:
            return np.ones((len(i), len(j)))
        return self.extras.dropout_keep[b, h, i[:, None], j[None, :]] / (1 - self.options.dropout_p)

    def _visible(self, b: int, h: int, rows: Array, keys: Array, level: Array) -> Array:
        seen = np.ones(np.broadcast_shapes(rows.shape, keys.shape), dtype=bool)
        if self.options.causal:
            seen &= keys <= level
        left, right = self.options.window or (None, None)
        if left is not None:
            seen &= level - left <= keys
        if right is not None:
            seen &= keys <= level + right
        if self.extras.mask is not None:
            seen &= self._full(self.extras.mask)[b, h, rows, keys]
        if self.extras.block_mask is not None and self.extras.block_size is not None:
            block_q, block_k = self.extras.block_size
            blocks = np.broadcast_to(self.extras.block_mask, (*self.full_shape[:2], *self.extras.block_mask.shape[2:]))
            seen &= blocks[b, h, rows // block_q, keys // block_k]
        return seen

    def _shift(self, b: int) -> int:
        seqlen_q, seqlen_k = self.lengths(b)
        return 0 if self.options.alignment == "top_left" else seqlen_k - seqlen_q

    def _full(self, array: Array) -> Array:
        return np.broadcast_to(array, self.full_shape)


def _tiles(length: int, size: int) -> Iterator[Array]:
    return (np.arange(start, min(start + size, length)) for start in range(0, length, size))
