"""Metamorphic relations that hold within rounding: the changed call is judged by its own reference and bounds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from verify.checks.case_run import CaseRun
from verify.checks.relation import Relation
from verify.checks.variation import logical_values, vary, with_inputs
from verify.inputs import lay_out, round_to


def rounded_relations(run: CaseRun, backward: bool) -> Iterator[Relation]:
    """The relations that the case admits."""
    yield shifted_scores(run, backward)
    yield shifted_values(run, backward)
    if _keys_have_no_place(run):
        yield keys_reversed(run, backward)
        yield keys_twice(run, backward)
    if backward:
        yield constant_key_column(run)
        if run.contract.capabilities.takes_dlse:
            yield gradient_of_lse_alone(run)


def _keys_have_no_place(run: CaseRun) -> bool:
    """Whether the order of keys means nothing: no mask, bias or dropout, dense sequences of one length."""
    p = run.case.problem
    structured = p.causal or p.window is not None or p.pattern != "none" or p.bias != "none" or p.dropout_p > 0
    return not structured and not p.is_ragged and p.seqlens_k is None


def shifted_scores(run: CaseRun, backward: bool) -> Relation:
    """k plus one vector for all keys: with no softcap every score of a row shifts, so out stays and lse moves."""
    values = logical_values(run)
    random = np.random.Generator(np.random.PCG64(run.case.seed))
    shift = random.standard_normal(values["k"].shape[-2:])
    values["k"] = round_to(values["k"].astype(np.float64) + shift, run.case.problem.dtype)
    return Relation(label="k shifted by one vector", varied=vary(run, values), backward=backward)


def shifted_values(run: CaseRun, backward: bool) -> Relation:
    """v plus one vector for all keys: out moves by it, dP - delta and what follows from it stay."""
    values = logical_values(run)
    random = np.random.Generator(np.random.PCG64(run.case.seed))
    shift = random.standard_normal(values["v"].shape[-2:])
    values["v"] = round_to(values["v"].astype(np.float64) + shift, run.case.problem.dtype)
    return Relation(label="v shifted by one vector", varied=vary(run, values), backward=backward)


def keys_reversed(run: CaseRun, backward: bool) -> Relation:
    """Keys and values in reverse order: the same sums in another order."""
    values = logical_values(run)
    values |= {name: values[name][:, ::-1] for name in ("k", "v")}
    return Relation(label="keys reversed", varied=vary(run, values), backward=backward)


def keys_twice(run: CaseRun, backward: bool) -> Relation:
    """Every key twice: out stays, lse grows by ln 2, dk and dv halve."""
    values, problem = logical_values(run), run.case.problem
    values |= {name: np.concatenate([values[name]] * 2, axis=1) for name in ("k", "v")}
    layout = "bshd" if problem.layout == "packed_qkv" else problem.layout
    varied = vary(run, values, replace(problem, seqlen_k=2 * problem.seqlen_k, layout=layout))
    return Relation(label="every key twice", varied=varied, backward=backward)


def constant_key_column(run: CaseRun) -> Relation:
    """Column 0 of k is 1: column 0 of dq is scale * sum_j dS_ij, the read-out of the error of delta."""
    values = logical_values(run)
    finite = np.isfinite(values["k"][..., 0].astype(np.float64))
    values["k"][..., 0] = np.where(finite, 1.0, np.nan).astype(values["k"].dtype)
    return Relation(label="k constant in column 0", varied=vary(run, values), backward=True)


def gradient_of_lse_alone(run: CaseRun) -> Relation:
    """dout = 0 and dlse given: dq = scale * dlse * softmax(S) K, and dv = 0."""
    values = logical_values(run)
    values["dout"][...] = 0
    # Odd seeds are asked with a gradient of lse.
    case = replace(run.case, seed=run.case.seed | 1)
    return Relation(
        label="gradient of lse alone", varied=with_inputs(run, case, lay_out(case.problem, values)), backward=True
    )
