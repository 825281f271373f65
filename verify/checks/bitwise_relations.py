"""Metamorphic relations that hold bit for bit for any kernel whose rounding is symmetric and that treats rows alone.

Powers of two scale exactly while nothing overflows or becomes subnormal; where it does, bits differ and the call is
judged by its own bounds (`relation.hold`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from verify.checks.case_run import CaseRun
from verify.checks.relation import Relation
from verify.checks.variation import Array, Values, logical_values, vary
from verify.dtypes import float_format

GRADIENTS = ("dq", "dk", "dv", "dbias", "dsink")
VALUE_FACTOR, DOUT_FACTOR = 4.0, 0.5
"""Factors on v (its inverse where v is so large that it would overflow) and dout: powers of two, far from 1."""

QUERY_FACTOR = 4.0
"""Factor on q: its root is a power of two as well, for kernels that apply the root of the scale on both sides."""


def bitwise_relations(run: CaseRun, first: Values, backward: bool) -> Iterator[Relation]:
    """The relations that the case admits."""
    yield negated(run, first, backward)
    yield scaled(run, first, backward)
    yield columns_reversed(run, first, backward)
    yield signs_flipped(run, first, backward)
    yield values_negated(run, first, backward)
    yield scaled_operands(run, first, backward)
    yield scaled_queries(run, first, backward)
    yield columns_cleared(run, first, backward)
    if rows_have_no_place(run):
        yield rows_reversed(run, first, backward)
    if run.case.problem.group > 1:
        yield repeated_heads(run, first, backward)
    if backward:
        yield without_keys(run)
        yield without_dout(run, first)
        yield some_rows_without_dout(run, first)
        yield without_values(run, first)


def _times(array: Array, factor: float) -> Array:
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        scaled_array: Array = (array.astype(np.float64) * factor).astype(array.dtype)
    return scaled_array


def negated(run: CaseRun, first: Values, backward: bool) -> Relation:
    """(q, k) -> (-q, -k): the scores stay, dq and dk change sign."""
    values = logical_values(run)
    values |= {name: -values[name] for name in ("q", "k")}
    expected = {name: -array if name in ("dq", "dk") else array for name, array in first.items()}
    return Relation(label="q and k negated", varied=vary(run, values), backward=backward, expected=expected)


def scaled(run: CaseRun, first: Values, backward: bool) -> Relation:
    """v -> f v, dout -> g dout, dlse -> f g dlse: out f times, dv g times, the other gradients f g times as large."""
    v = run.facts.inputs.arrays["v"].astype(np.float64)
    room = VALUE_FACTOR * np.abs(v[np.isfinite(v)]).max(initial=0.0)
    form = float_format(run.case.problem.dtype)
    factor = VALUE_FACTOR if room <= form.max_finite else 1.0 / VALUE_FACTOR
    both = factor * DOUT_FACTOR
    factors = {"v": factor, "dout": DOUT_FACTOR, "dlse": both}
    results = {"out": factor, "lse": 1.0, "dv": DOUT_FACTOR}
    values = logical_values(run)
    values |= {name: _times(values[name], change) for name, change in factors.items()}
    expected = {name: _times(array, results.get(name, both)) for name, array in first.items()}
    label = f"v times {factor:g}, dout times {DOUT_FACTOR:g}"
    return Relation(label=label, varied=vary(run, values), backward=backward, expected=expected)


def columns_reversed(run: CaseRun, first: Values, backward: bool) -> Relation:
    """Columns of v and dout in reverse: columns of out and dv too. dP is a sum over columns, so the rest may round."""
    values = logical_values(run)
    values |= {name: values[name][..., ::-1] for name in ("v", "dout")}
    expected = {name: array[..., ::-1] for name, array in first.items() if name in ("out", "dv")}
    return Relation(label="columns of v reversed", varied=vary(run, values), backward=backward, expected=expected)


def signs_flipped(run: CaseRun, first: Values, backward: bool) -> Relation:
    """Every second column of q and k negated: products and scores stay, these columns of dq and dk change sign."""
    values = logical_values(run)
    for name in ("q", "k"):
        values[name][..., ::2] = -values[name][..., ::2]
    signs = np.ones(run.case.problem.head_dim)
    signs[::2] = -1
    expected = {
        name: (array * signs.astype(array.dtype) if name in ("dq", "dk") else array) for name, array in first.items()
    }
    return Relation(label="signs of q and k flipped", varied=vary(run, values), backward=backward, expected=expected)


def values_negated(run: CaseRun, first: Values, backward: bool) -> Relation:
    """v and dout negated: out and dv change sign, dP and what follows from it stay."""
    values = logical_values(run)
    values |= {name: -values[name] for name in ("v", "dout")}
    expected = {name: -array if name in ("out", "dv") else array for name, array in first.items()}
    return Relation(label="v and dout negated", varied=vary(run, values), backward=backward, expected=expected)


def scaled_operands(run: CaseRun, first: Values, backward: bool) -> Relation:
    """(q, k) -> (f q, k / f): the scores stay, dq is 1/f and dk f times as large."""
    values = logical_values(run)
    values |= {"q": _times(values["q"], QUERY_FACTOR), "k": _times(values["k"], 1 / QUERY_FACTOR)}
    factors = {"dq": 1 / QUERY_FACTOR, "dk": QUERY_FACTOR}
    expected = {name: _times(array, factors.get(name, 1.0)) for name, array in first.items()}
    label = f"q times {QUERY_FACTOR:g}, k divided by it"
    return Relation(label=label, varied=vary(run, values), backward=backward, expected=expected)


def scaled_queries(run: CaseRun, first: Values, backward: bool) -> Relation:
    """q -> f q with softmax_scale / f: the scores stay, dq is 1/f times as large."""
    problem, values = run.case.problem, logical_values(run)
    values["q"] = _times(values["q"], QUERY_FACTOR)
    varied = vary(run, values, replace(problem, softmax_scale=problem.softmax_scale / QUERY_FACTOR))
    expected = {name: _times(array, 1 / QUERY_FACTOR if name == "dq" else 1.0) for name, array in first.items()}
    label = f"q times {QUERY_FACTOR:g}, softmax_scale divided by it"
    return Relation(label=label, varied=varied, backward=backward, expected=expected)


def columns_cleared(run: CaseRun, first: Values, backward: bool) -> Relation:
    """v = 0 in every second column: out is 0 there and the same elsewhere; lse and dv do not depend on v."""
    values = logical_values(run)
    cleared = values["v"][..., ::2]
    values["v"][..., ::2] = np.where(np.isnan(cleared), cleared, 0)
    expected = {name: array.copy() for name, array in first.items() if name in ("out", "lse", "dv")}
    expected["out"][..., ::2] = 0
    return Relation(
        label="every second column of v = 0", varied=vary(run, values), backward=backward, expected=expected
    )


def rows_have_no_place(run: CaseRun) -> bool:
    """Whether the order of query rows means nothing: no mask, bias or dropout, dense sequences of one length."""
    p = run.case.problem
    structured = p.causal or p.window is not None or p.pattern != "none" or p.bias != "none" or p.dropout_p > 0
    return not structured and not p.is_ragged


def rows_reversed(run: CaseRun, first: Values, backward: bool) -> Relation:
    """Query rows in reverse: those of out, lse and dq too. dk and dv are sums over rows, so they may round."""
    values = logical_values(run)
    values |= {name: values[name][:, ::-1] for name in ("q", "dout")}
    values["dlse"] = values["dlse"][..., ::-1]
    expected = {
        name: array[..., ::-1] if name == "lse" else array[:, ::-1]
        for name, array in first.items()
        if name in ("out", "lse", "dq")
    }
    return Relation(label="rows reversed", varied=vary(run, values), backward=backward, expected=expected)


def without_keys(run: CaseRun) -> Relation:
    """k = 0: every score is 0 before bias, and dq = 0."""
    values = logical_values(run)
    values["k"][...] = np.where(np.isnan(values["k"]), values["k"], 0)
    expected = {"dq": np.zeros_like(values["q"])}
    return Relation(label="k = 0", varied=vary(run, values), backward=True, expected=expected)


def repeated_heads(run: CaseRun, first: Values, backward: bool) -> Relation:
    """k and v repeated for every query head: out, lse and dq as with shared heads; dk and dv are no longer summed."""
    problem = run.case.problem
    values = logical_values(run)
    values |= {name: np.repeat(values[name], problem.group, axis=-2) for name in ("k", "v")}
    layout = "bshd" if problem.layout == "packed_qkv" else problem.layout
    varied = vary(run, values, replace(problem, nheads_kv=problem.nheads, layout=layout))
    expected = {name: array for name, array in first.items() if name not in ("dk", "dv")}
    return Relation(label="shared heads repeated", varied=varied, backward=backward, expected=expected)


def without_dout(run: CaseRun, first: Values) -> Relation:
    """dout = 0 and dlse = 0: every gradient is 0."""
    values = logical_values(run)
    values |= {name: np.zeros_like(values[name]) for name in ("dout", "dlse")}
    expected = {name: np.zeros_like(array) if name in GRADIENTS else array for name, array in first.items()}
    return Relation(label="dout = 0", varied=vary(run, values), backward=True, expected=expected)


def some_rows_without_dout(run: CaseRun, first: Values) -> Relation:
    """dout = 0 in every second row: dq is 0 there and the same elsewhere."""
    values = logical_values(run)
    row_axis = 0 if run.case.problem.is_ragged else 1
    values["dout"][(slice(None),) * row_axis + (slice(0, None, 2),)] = 0
    values["dlse"][..., ::2] = 0
    dq = first["dq"].copy()
    dq[(slice(None),) * row_axis + (slice(0, None, 2),)] = 0
    expected = {name: first[name] for name in ("out", "lse") if name in first} | {"dq": dq}
    return Relation(label="dout = 0 in every second row", varied=vary(run, values), backward=True, expected=expected)


def without_values(run: CaseRun, first: Values) -> Relation:
    """v = 0 and dlse = 0: out, dq and dk are 0, and dv = P^T dout does not depend on v."""
    values = logical_values(run)
    values["v"][...] = np.where(np.isnan(values["v"]), values["v"], 0)
    values["dlse"][...] = 0
    expected = {name: np.zeros_like(array) for name, array in first.items() if name not in ("lse", "dv")}
    expected |= {name: first[name] for name in ("lse", "dv") if name in first}
    return Relation(label="v = 0", varied=vary(run, values), backward=True, expected=expected)
