"""The forward of a tiled kernel replayed in fp64 with only the roundings that its contract declares, and how far an
implementation of exactly that arithmetic may lie from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verify.checks.case_run import CaseFacts
from verify.checks.replay_rounding import Replay, exact_scores, flip_sizes, stored, with_output_rounding
from verify.contract import Arithmetic
from verify.dense import DenseSequence, dense_sequences, put_outputs, take_outputs
from verify.dtypes import FloatFormat, float_format
from verify.tolerance import CONFIDENCE
from verify.tolerance.operands import operands_of
from verify.tolerance.roundings import U, resolve
from verify.tolerance.scores import score_block

Float64 = NDArray[np.float64]


def unreplayable(arithmetic: Arithmetic) -> str | None:
    """Why a replay would say nothing of this arithmetic, or None."""
    if arithmetic.probs_dtype == "fp32":
        return "no rounding below fp32 inside the forward is declared"
    simple = arithmetic.scores_dtype == "fp32" and arithmetic.probs_normalised_dtype == "fp32"
    if not simple or arithmetic.scale_on != "scores" or arithmetic.rounds_out_per_tile:
        return "scores, scaled operands, normalised P or out between tiles are rounded"
    return None if arithmetic.argmax_exact else "the running maximum is not declared exact"


def replay_forward(facts: CaseFacts, arithmetic: Arithmetic, tile_k: int) -> Replay:
    """out of the declared arithmetic with key tiles in ascending order.

    Parameters
    ----------
    facts : CaseFacts
        Inputs, reference and bounds of the case; all inputs that count are finite.
    arithmetic : Arithmetic
        One that `unreplayable` accepts.
    tile_k : int
        Keys a tile; 0 = all in one.

    Notes
    -----
    Everything but the rounding of P is fp64. A conforming kernel differs by what its fp32 steps permit (the bound of
    the same arithmetic with P in fp32), by a common shift of numerator against denominator (|out| times the bound of
    lse), and by one ulp of every P within its own error of a rounding boundary, which it may round to the other side.
    """
    problem, arrays = facts.case.problem, facts.inputs.arrays
    reference = facts.reference(backward=False, with_dlse=False)
    exact_probs = replace(arithmetic, probs_dtype="fp32", tile_k=tile_k)
    bounds = facts.bounds(exact_probs, backward=False, with_dlse=False)
    out, flips = np.zeros(reference["out"].shape), np.zeros(reference["out"].shape)
    for part in dense_sequences(problem, arrays):
        known = take_outputs(problem, reference, part)
        done = _replay_sequence(problem, part, known, exact_probs, float_format(arithmetic.probs_dtype), arithmetic)
        put_outputs(problem, {"out": out}, part, {"out": done[0]})
        put_outputs(problem, {"out": flips}, part, {"out": done[1]})
    shift = np.abs(reference["out"]) * np.expand_dims(np.swapaxes(bounds["lse"].total, -1, -2), -1)
    before = bounds["out"].total - bounds["out"].output_half_ulp + shift + flips
    form = float_format(arithmetic.out_dtype or problem.dtype)
    # The rounding of out happens where the replay lies, which may be another binade than that of the reference.
    return Replay(values=out, permitted=with_output_rounding(out, before, form))


def _replay_sequence(
    problem: Any,
    part: DenseSequence,
    known: Mapping[str, NDArray[Any]],
    exact_probs: Arithmetic,
    form: FloatFormat,
    arithmetic: Arithmetic,
) -> tuple[Float64, Float64]:
    """(out, what flipped roundings of P may change), (heads, rows, head_dim_v)."""
    shape = (part.nheads, part.seqlen_q, part.seqlen_k)
    values = np.repeat(part.v, part.group, axis=0)
    total, unsure_total = np.zeros(shape[:2]), np.zeros(shape[:2])
    out, flips = np.zeros((*shape[:2], values.shape[-1])), np.zeros((*shape[:2], values.shape[-1]))
    if 0 in shape:
        return out, flips
    scores = exact_scores(part)
    error = _exponent_error(problem, part, known, exact_probs)
    kept = np.ones(shape) if part.dropout_keep is None else part.dropout_keep / (1.0 - part.dropout_p)
    maximum = np.full(shape[:2], -np.inf)
    width = exact_probs.tile_k or shape[2]
    for start in range(0, shape[2], width):
        keys = slice(start, start + width)
        grown = np.maximum(maximum, scores[..., keys].max(axis=-1))
        finite = np.where(grown == -np.inf, 0.0, grown)
        weights = np.exp(scores[..., keys] - finite[..., None])
        rounded = stored(weights, form)
        shrink = np.exp(maximum - finite)
        total = total * shrink + (rounded if arithmetic.sum_rounded_probs else weights).sum(axis=-1)
        out = out * shrink[..., None] + (kept[..., keys] * rounded) @ values[..., keys, :]
        unsure = flip_sizes(weights, error[..., keys] * weights, form)
        flips = flips * shrink[..., None] + (kept[..., keys] * unsure) @ np.abs(values[..., keys, :])
        unsure_total = unsure_total * shrink + unsure.sum(axis=-1)
        maximum = grown
    if part.sink is not None:
        joined = np.maximum(maximum, part.sink[:, None])
        shrink = np.exp(maximum - joined)
        total = total * shrink + np.exp(part.sink[:, None] - joined)
        out, flips, unsure_total = out * shrink[..., None], flips * shrink[..., None], unsure_total * shrink
    normaliser = np.where(total == 0, 1.0, total)[..., None]
    out = out / normaliser
    if arithmetic.sum_rounded_probs:
        flips = flips + unsure_total[..., None] * np.abs(out)
    return out, flips / normaliser


def _exponent_error(
    problem: Any, part: DenseSequence, known: Mapping[str, NDArray[Any]], arithmetic: Arithmetic
) -> Float64:
    """Largest relative error of every weight at the running maximum, (heads, rows, keys)."""
    rounds = resolve(problem, part, arithmetic)
    kv_heads = slice(0, part.k.shape[0])
    ops = operands_of(part, known["out"], known["lse"], kv_heads, rounds, backward=False, with_dlse=False)
    block, _ = score_block(ops, rounds, slice(0, part.seqlen_q), slice(0, part.seqlen_k), None, CONFIDENCE)
    # The weight is relative to the maximum, whose score has an error of its own.
    variance = block.variance.astype(np.float64)
    deviation = np.sqrt(variance + variance.max(axis=-1, keepdims=True))
    return np.asarray(CONFIDENCE * U * deviation + 2.0 * U * np.broadcast_to(block.hard, variance.shape))
