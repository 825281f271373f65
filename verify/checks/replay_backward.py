"""The backward of a kernel replayed in fp64 with only the roundings that its contract declares, from the kernel's own
out and lse, and how far an implementation of exactly that arithmetic may lie from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verify.checks.case_run import CaseFacts
from verify.checks.replay_rounding import Replay, exact_scores, flip_sizes, stored, with_output_rounding
from verify.contract import Arithmetic
from verify.dense import DenseSequence, dense_sequences, put_outputs, take_outputs
from verify.dtypes import float_format
from verify.problem import AttentionProblem
from verify.tolerance import CONFIDENCE
from verify.tolerance.delta_errors import products, row_errors
from verify.tolerance.forward_terms import forward_block
from verify.tolerance.gradient_errors import gradient_errors
from verify.tolerance.gradient_terms import as_rows
from verify.tolerance.operands import operands_of
from verify.tolerance.roundings import U, resolve
from verify.tolerance.scores import score_block

Float64 = NDArray[np.float64]
Outputs = Mapping[str, NDArray[Any]]
GRADIENTS = ("dq", "dk", "dv")


def unreplayable_backward(problem: AttentionProblem, arithmetic: Arithmetic) -> str | None:
    """Why a replay would say nothing of this backward, or None."""
    a = arithmetic
    if a.probs_backward_dtype == "fp32" and a.dscores_dtype == "fp32":
        return "no rounding below fp32 inside the backward is declared"
    simple = a.scores_dtype == "fp32" and a.probs_normalised_dtype == "fp32" and a.dprobs_dtype == "fp32"
    if not simple or a.scale_on != "scores":
        return "scores, scaled operands, normalised P or dP are rounded"
    if not a.lse_stored or a.lse_dtype != "fp32" or a.delta_from != "out":
        return "P or delta comes from what the kernel does not return"
    if a.rounds_dq_per_tile or a.rounds_dkv_per_tile or (problem.group > 1 and a.group_sum_dtype != "fp32"):
        return "gradients are rounded between tiles or heads, in an order that is not declared"
    return None


def replay_backward(
    facts: CaseFacts, arithmetic: Arithmetic, outputs: Outputs, *, with_dlse: bool
) -> dict[str, Replay]:
    """dq, dk and dv of the declared arithmetic.

    Parameters
    ----------
    facts : CaseFacts
        Inputs, reference and bounds of the case; all inputs that count are finite.
    arithmetic : Arithmetic
        One that `unreplayable_backward` accepts.
    outputs : mapping
        The kernel's own out and lse in logical shape: what its backward starts from.
    with_dlse : bool
        The backward received dlse.

    Notes
    -----
    Everything but the roundings of P and dS is fp64. A conforming kernel differs by what its fp32 steps permit (the
    bound of the same arithmetic without these roundings) and by one ulp of every P and dS within its own error of a
    rounding boundary, which it may round to the other side.
    """
    problem = facts.case.problem
    exact = replace(
        arithmetic,
        probs_dtype="fp32",
        probs_backward_dtype="fp32",
        probs_dscores_dtype="fp32",
        dscores_dtype="fp32",
        scale_on_dscores=False,
        # The kernel's own out is what the replay starts from: its rounding is no part of the difference.
        delta_from="accumulator",
    )
    reference = facts.reference(backward=True, with_dlse=with_dlse)
    bounds = facts.bounds(exact, backward=True, with_dlse=with_dlse)
    values = {name: np.zeros(reference[name].shape) for name in GRADIENTS}
    flips = {name: np.zeros(reference[name].shape) for name in GRADIENTS}
    for part in dense_sequences(problem, facts.inputs.arrays):
        if part.dout is None or 0 in (part.seqlen_q, part.seqlen_k):
            continue
        known = take_outputs(problem, {name: reference[name] for name in ("out", "lse")}, part)
        own = take_outputs(problem, {name: outputs[name] for name in ("out", "lse")}, part)
        errors = _errors(problem, part, known, exact, with_dlse=with_dlse)
        done, unsure = _replay_sequence(part, own, errors, arithmetic, with_dlse=with_dlse)
        put_outputs(problem, values, part, done)
        put_outputs(problem, flips, part, unsure)
    form = float_format(arithmetic.grad_dtype or problem.dtype)
    replays = {}
    for name in GRADIENTS:
        before = bounds[name].total - bounds[name].output_half_ulp + flips[name]
        replays[name] = Replay(values=values[name], permitted=with_output_rounding(values[name], before, form))
    return replays


@dataclass(frozen=True, slots=True, kw_only=True)
class _Errors:
    """Largest error of every P and dS before they are rounded, (heads, rows, keys)."""

    probs: Float64
    dscores: Float64


def _errors(
    problem: AttentionProblem, part: DenseSequence, known: Outputs, exact: Arithmetic, *, with_dlse: bool
) -> _Errors:
    rounds = resolve(problem, part, exact)
    kv_heads = slice(0, part.k.shape[0])
    ops = operands_of(part, known["out"], known["lse"], kv_heads, rounds, backward=True, with_dlse=with_dlse)
    assert ops.dout is not None, "asked only for a backward"
    block, maxima = score_block(ops, rounds, slice(0, part.seqlen_q), slice(0, part.seqlen_k), None, CONFIDENCE)
    product = products(ops, block, ops.dout)
    forward = forward_block(ops, rounds, block, maxima, CONFIDENCE)
    row = row_errors(ops, rounds, block, maxima, forward, product, CONFIDENCE)
    found = gradient_errors(ops, rounds, block, maxima, row, product, CONFIDENCE)
    exponent_variance = found.exponent_variance + found.row_exponent_variance
    probs = block.probs * (CONFIDENCE * U * np.sqrt(exponent_variance) + U * found.exponent_hard)
    sloped = found.inflation * (block.probs if block.slope is None else block.probs * block.slope)
    centred = found.inflation * found.dscores_sloped
    common = sloped**2 * as_rows(row.delta_variance) + centred**2 * as_rows(row.lse_variance)
    hard = found.hard + sloped * as_rows(row.delta_hard) + centred * as_rows(row.lse_hard)
    dscores = CONFIDENCE * U * np.sqrt(found.independent() + common) + U * hard
    return _Errors(
        probs=(probs * found.inflation).astype(np.float64), dscores=dscores.astype(np.float64) * product.unit
    )


def _replay_sequence(
    part: DenseSequence, own: Outputs, errors: _Errors, arithmetic: Arithmetic, *, with_dlse: bool
) -> tuple[dict[str, Float64], dict[str, Float64]]:
    """Gradients of one sequence, head-major, and what flipped roundings of P and dS may change in them."""
    assert part.dout is not None, "asked only for a backward"
    scores, lse = exact_scores(part), own["lse"].astype(np.float64)
    seen = np.isfinite(scores) & np.isfinite(lse)[..., None]
    with np.errstate(invalid="ignore", over="ignore"):
        probs = np.where(seen, np.exp(scores - lse[..., None]), 0.0)
    kept = 1.0 if part.dropout_keep is None else part.dropout_keep / (1.0 - part.dropout_p)
    delta = (part.dout * own["out"].astype(np.float64)).sum(axis=-1)
    if with_dlse and part.dlse is not None:
        delta = delta - part.dlse
    keys, values = (np.repeat(array, part.group, axis=0) for array in (part.k, part.v))
    factor = kept * (part.dout @ values.swapaxes(1, 2)) - delta[..., None]
    if part.softcap > 0:
        bare = part.softmax_scale * (part.q @ keys.swapaxes(1, 2))
        factor = factor * (1.0 - np.tanh(bare / part.softcap) ** 2)
    formats = {
        "probs": float_format(arithmetic.probs_backward_dtype),
        "multiplier": float_format(arithmetic.probs_dscores_dtype),
        "dscores": float_format(arithmetic.dscores_dtype),
    }
    early = part.softmax_scale if arithmetic.scale_on_dscores else 1.0
    multiplier, flipped = probs, np.zeros(probs.shape)
    if arithmetic.probs_dscores_dtype != "fp32":
        multiplier = stored(probs, formats["multiplier"])
        flipped = np.abs(factor) * np.where(seen, flip_sizes(probs, errors.probs, formats["multiplier"]), 0.0)
    dscores = early * multiplier * factor
    reach = early * (errors.dscores + flipped)
    rounded = {"probs": stored(probs, formats["probs"]), "dscores": stored(dscores, formats["dscores"]) / early}
    unsure = {
        "probs": np.where(seen, flip_sizes(probs, errors.probs, formats["probs"]), 0.0),
        "dscores": np.where(seen, flip_sizes(dscores, reach, formats["dscores"]) / early + flipped, 0.0),
    }
    magnitudes = {"q": np.abs(part.q), "k": np.abs(keys), "dout": np.abs(part.dout)}
    done = _products(part, rounded, kept, {"q": part.q, "k": keys, "dout": part.dout})
    return done, _products(part, unsure, kept, magnitudes)


def _products(
    part: DenseSequence, weights: Mapping[str, Float64], kept: Any, operands: Mapping[str, Float64]
) -> dict[str, Float64]:
    """dq = scale dS K, dk = scale dS^T Q and dv = (Z P)^T dO, dk and dv summed over the heads of a group."""
    dk = part.softmax_scale * (weights["dscores"].swapaxes(1, 2) @ operands["q"])
    dv = (kept * weights["probs"]).swapaxes(1, 2) @ operands["dout"]
    grouped = (part.k.shape[0], part.group)
    return {
        "dq": part.softmax_scale * (weights["dscores"] @ operands["k"]),
        "dk": dk.reshape(*grouped, *dk.shape[1:]).sum(axis=1),
        "dv": dv.reshape(*grouped, *dv.shape[1:]).sum(axis=1),
    }
