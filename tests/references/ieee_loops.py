"""Attention by scalar loops over visible keys only: what IEEE arithmetic makes of NaN and infinity. Slow, for tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from references.masks import dense_bias, dense_keep
from tests.references.problems import Problem


def forward_loops(problem: Problem) -> tuple[Any, Any]:
    """out and lse; a hidden key is never touched."""
    out = np.zeros((*problem.q.shape[:3], problem.v.shape[3]))
    lse = np.full((problem.q.shape[0], problem.q.shape[2], problem.q.shape[1]), -np.inf)
    for b, h, i, keys, probs, _, level in _rows(problem):
        for j, p in zip(keys, probs * _factors(problem, b, h, i, keys), strict=True):
            out[b, i, h] += p * problem.v[b, j, _kv_head(problem, h)]
        lse[b, h, i] = level
    return out, lse


def backward_loops(problem: Problem) -> dict[str, Any]:
    """dq, dk, dv; a hidden key is never touched."""
    dq, dk, dv = (np.zeros(x.shape) for x in problem.operands)
    for b, h, i, keys, probs, slopes, _ in _rows(problem):
        g = _kv_head(problem, h)
        dout, factors = problem.dout[b, i, h], _factors(problem, b, h, i, keys)
        dprobs = np.array([np.sum(dout * problem.v[b, j, g]) for j in keys]) * factors
        delta = np.sum(probs * dprobs)
        for j, p, slope, dprob, factor in zip(keys, probs, slopes, dprobs, factors, strict=True):
            dscore = p * (dprob - delta + problem.dlse[b, h, i]) * slope * problem.options.softmax_scale
            dv[b, j, g] += p * factor * dout
            dq[b, i, h] += dscore * problem.k[b, j, g]
            dk[b, j, g] += dscore * problem.q[b, i, h]
    return {"dq": dq, "dk": dk, "dv": dv}


def _rows(problem: Problem) -> Any:
    options, extras = problem.options, problem.extras
    for b in range(problem.q.shape[0]):
        n, m = problem.lengths(b)
        keep = dense_keep(options, extras, b, n, m, problem.q.shape[2])
        bias = dense_bias(options, extras, b, n, m, problem.q.shape[2])
        for h, i in np.ndindex(problem.q.shape[2], n):
            keys = np.flatnonzero(keep[h, i])
            raw = np.array([np.sum(problem.q[b, i, h] * problem.k[b, j, _kv_head(problem, h)]) for j in keys])
            scores, slopes = raw * options.softmax_scale, np.ones(len(keys))
            if options.softcap:
                slopes = 1 / np.cosh(scores / options.softcap) ** 2
                scores = options.softcap * np.tanh(scores / options.softcap)
            scores = scores if bias is None else scores + bias[h, i, keys]
            sink = [] if extras.sink is None else [extras.sink[h]]
            if len(keys) + len(sink) == 0:
                continue
            peak = np.max([*scores, *sink])
            weights = np.exp(scores - peak)
            total = np.sum(weights) + np.sum(np.exp(np.array(sink) - peak))
            yield b, h, i, keys, weights / total, slopes, peak + np.log(total)


def _factors(problem: Problem, b: int, h: int, i: int, keys: Any) -> Any:
    if problem.extras.dropout_keep is None:
        return np.ones(len(keys))
    return problem.extras.dropout_keep[b, h, i, keys] / (1 - problem.options.dropout_p)


def _kv_head(problem: Problem, h: int) -> int:
    return h // (problem.q.shape[2] // problem.k.shape[2])
