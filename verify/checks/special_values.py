"""Special values check: a NaN or infinity that a row may attend to reaches what the reference says, nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verify.checks.base import Check
from verify.checks.case_run import CaseFacts, CaseRun
from verify.checks.comparison import FAULTS
from verify.checks.places import Index, Pair, key_index, row_index, visible_pair
from verify.checks.variation import Ledger, logical_values, owed_outputs, several_calls_refusal, skipped, vary
from verify.problem import AttentionProblem
from verify.verdict import Finding, Status

NAME = "special_values"
MASKS = ("mask", "block_mask")

Array = NDArray[Any]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """One element that becomes special."""

    array: str
    index: Index
    value: float

    @property
    def label(self) -> str:
        """Text for reasons."""
        return f"{self.value} in {self.array}"


def spots(problem: AttentionProblem, arrays: Mapping[str, Array], pair: Pair, *, backward: bool) -> Iterator[Spot]:
    """NaN in one element of each operand; infinity in v and dout.

    An infinity in q or k gives scores of either sign, whose softmax kernels may form in more than one legal way.
    """
    row, key = row_index(problem, pair.sequence, pair.row), key_index(problem, arrays, pair.sequence, pair.key)
    kv_head, last, last_v = pair.head // problem.group, problem.head_dim - 1, problem.head_dim_v - 1
    yield Spot(array="q", index=(*row, pair.head, last), value=np.nan)
    yield Spot(array="k", index=(*key, kv_head, last // 2), value=np.nan)
    yield Spot(array="v", index=(*key, kv_head, last_v), value=np.nan)
    yield Spot(array="v", index=(*key, kv_head, last_v // 2), value=np.inf)
    if backward:
        yield Spot(array="dout", index=(*row, pair.head, last_v), value=np.nan)
        yield Spot(array="dout", index=(*row, pair.head, last_v // 2), value=-np.inf)


def _special_values(run: CaseRun) -> Finding:
    problem = run.case.problem
    refusal = several_calls_refusal(run)
    if refusal is not None:
        return skipped(NAME, refusal)
    if problem.dropout_p > 0:
        return skipped(NAME, "a dropped weight may or may not carry a NaN")
    arrays = run.facts.inputs.arrays
    pair = visible_pair(problem, arrays)
    if pair is None:
        return skipped(NAME, "no row sees a key")
    ledger = Ledger(check=NAME, run=run)
    backward = run.contract.capabilities.backward
    for spot in spots(problem, arrays, pair, backward=backward):
        values = logical_values(run)
        values[spot.array][spot.index] = spot.value
        varied = vary(run, values)
        outputs = ledger.outputs(varied, spot.label, backward=backward)
        if outputs is not None:
            _judge(ledger, varied, spot, outputs)
    return ledger.finding()


def _judge(ledger: Ledger, varied: CaseRun, spot: Spot, outputs: Mapping[str, Array]) -> None:
    """What must be special is, what lies out of reach is not, and what did not change is within its bound."""
    run = ledger.run
    backward = run.contract.capabilities.backward
    key = {"backward": backward, "with_dlse": backward and run.with_dlse}
    clean, bounds = run.facts.reference(**key), run.facts.bounds(run.arithmetic, **key)
    required = varied.facts.reference(**key)
    reach = required if run.contract.capabilities.nan_behind_mask else _unmasked(varied.facts).reference(**key)
    for name in owed_outputs(run, backward=backward):
        if name not in outputs or outputs[name].shape != clean[name].shape:
            ledger.fail(Status.SHAPE, f"{spot.label}: {name} absent or of the wrong shape")
            continue
        got = outputs[name].astype(np.float64)
        must = _special(required[name], spot) & ~_special(clean[name], spot)
        may = _special(reach[name], spot) | _special(clean[name], spot)
        exempt = np.isinf(bounds[name].total) | bounds[name].overflow_ok
        missing = must & ~_special(got, spot)
        if missing.any():
            ledger.fail(Status.NONFINITE, f"{spot.label}: lost in {_count(missing)} of {name} that it must reach")
        leaked = ~may & ~_finite_like(got, clean[name]) & ~exempt
        if leaked.any():
            ledger.fail(Status.NONFINITE, f"{spot.label}: leaks into {_count(leaked)} of {name} out of its reach")
        with np.errstate(invalid="ignore"):
            unchanged = ~may & ~leaked & ~exempt & np.isfinite(clean[name]) & (required[name] == clean[name])
            off = unchanged & ~(np.abs(got - clean[name]) <= bounds[name].total)
        if off.any():
            ledger.fail(Status.NUMERICAL, f"{spot.label}: changes {_count(off)} of {name} out of its reach")


def _special(values: Array, spot: Spot) -> Bools:
    """NaN for a NaN; for an infinity every non-finite number, as 0 * inf and inf - inf depend on the order of work.

    lse of a row that sees nothing is -inf by definition and not special.
    """
    return np.isnan(values) if np.isnan(spot.value) else np.isnan(values) | np.isposinf(np.abs(values))


def _finite_like(got: Array, clean: Array) -> Bools:
    """Finite, or infinite exactly where the clean reference is."""
    same: Bools = np.isfinite(got) | (got == clean)
    return same


def _unmasked(facts: CaseFacts) -> CaseFacts:
    """Facts without masks: how far a special value may reach where a weight of 0 may meet it."""
    problem = replace(facts.case.problem, causal=False, window=None, pattern="none")
    arrays = {name: array for name, array in facts.inputs.arrays.items() if name not in MASKS}
    if problem.bias_hidden > 0:
        problem = replace(problem, bias_hidden=0.0)
        arrays["bias"] = np.where(np.isneginf(arrays["bias"]), arrays["bias"].dtype.type(0), arrays["bias"])
    inputs = replace(facts.inputs, problem=problem, arrays=arrays)
    return CaseFacts(case=replace(facts.case, problem=problem), inputs=inputs)


def _count(where: Bools) -> str:
    return f"{np.count_nonzero(where)} elements (first {tuple(int(x) for x in np.argwhere(where)[0])})"


SPECIAL_VALUES = Check(
    name=NAME,
    summary="a NaN (inf) in one element of q, k, v, dout reaches the rows that may attend to it and no other",
    calls=6,
    raises=FAULTS,
    function=_special_values,
)
