"""Split-merge check: the keys in two calls, merged by their lse, are the whole call.

L = log(e^L1 + e^L2) and O = e^(L1 - L) O1 + e^(L2 - L) O2 for any two parts of the keys (FlashDecoding; Milakov &
Gimelshein 2018, section 3). A row that one part hides takes all from the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from verify.checks.base import Check
from verify.checks.case_run import CaseRun
from verify.checks.comparison import FAULTS
from verify.checks.key_parts import key_parts, unsplittable
from verify.checks.variation import Array, Ledger, first_outputs, several_calls_refusal, skipped
from verify.verdict import Finding, Status

NAME = "split_merge"
Float64 = NDArray[np.float64]

FP64_MERGE = 2.0**-48
"""Relative error of the merge below: a dozen fp64 operations of 2^-53 each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """out (batch, rows, heads, dim) and lse (batch, heads, rows) of one part of the keys, with what they may be off."""

    out: Float64
    lse: Float64
    out_bound: Float64
    lse_bound: Float64


def merge(first: Part, second: Part) -> Part:
    """The two parts as one, in fp64.

    Notes
    -----
    With weights w and D = the sum of the two bounds of lse: a weight moves by at most w1 w2 (e^D - 1), so out moves by
    that times |O1 - O2| and by the bounds of O1 and O2 times the weights; lse moves by at most log(sum w e^bound).
    """
    lse = np.logaddexp(first.lse, second.lse)
    with np.errstate(invalid="ignore"):
        shares = [np.where(np.isneginf(lse), 0.0, np.exp(part.lse - lse)) for part in (first, second)]
    moved = shares[0] * shares[1] * np.expm1(first.lse_bound + second.lse_bound)
    weights = [_by_row(share) for share in shares]
    out = _times(weights[0], first.out) + _times(weights[1], second.out)
    slack = _by_row(moved)
    out_bound = (
        _times(slack, np.abs(first.out - second.out))
        + _times(weights[0] + slack, first.out_bound)
        + _times(weights[1] + slack, second.out_bound)
        + FP64_MERGE * (np.abs(first.out) + np.abs(second.out))
    )
    grown = sum(_times(share, np.exp(part.lse_bound)) for share, part in zip(shares, (first, second), strict=True))
    lse_bound = np.where(np.isneginf(lse), 0.0, np.log(np.maximum(grown, 1.0)) + FP64_MERGE * (1.0 + np.abs(lse)))
    return Part(out=out, lse=lse, out_bound=out_bound, lse_bound=lse_bound)


def _times(weight: Float64, values: Float64) -> Float64:
    """Product in which a weight of 0 hides whatever it meets: a part without a visible key is not looked at."""
    with np.errstate(invalid="ignore", over="ignore"):
        return np.where(weight == 0, 0.0, weight * values)


def _by_row(values: Float64) -> Float64:
    """(batch, heads, rows) as a factor on (batch, rows, heads, dim)."""
    return np.swapaxes(values, 1, 2)[..., None]


def _split_merge(run: CaseRun) -> Finding:
    refusal = several_calls_refusal(run) or unsplittable(run)
    if refusal is not None:
        return skipped(NAME, refusal)
    first = first_outputs(NAME, run)
    if isinstance(first, Finding):
        return first
    ledger = Ledger(check=NAME, run=run)
    whole = _part(run, first)
    for label, runs in key_parts(run):
        answers = [ledger.judge(part, f"{label}, {name}", backward=False) for name, part in runs.items()]
        if ledger.statuses:
            # A part that is wrong by itself says all that its merge could say.
            return ledger.finding()
        found = [_part(part, answer) for part, answer in zip(runs.values(), answers, strict=True) if answer is not None]
        for reason in _differences(whole, merge(*found)):
            ledger.fail(Status.NUMERICAL, f"{label}: {reason}")
    return ledger.finding("the keys cannot be split in a way that the candidate takes")


def _part(run: CaseRun, outputs: Mapping[str, Array]) -> Part:
    bounds = run.facts.bounds(run.arithmetic, backward=False, with_dlse=False)
    return Part(
        out=outputs["out"].astype(np.float64),
        lse=outputs["lse"].astype(np.float64),
        out_bound=bounds["out"].total,
        lse_bound=bounds["lse"].total,
    )


def _differences(whole: Part, merged: Part) -> Iterator[str]:
    pairs = (
        ("out", whole.out, merged.out, whole.out_bound + merged.out_bound),
        ("lse", whole.lse, merged.lse, whole.lse_bound + merged.lse_bound),
    )
    for name, got, expected, bound in pairs:
        with np.errstate(invalid="ignore"):
            held = (got == expected) | (np.abs(got - expected) <= bound)
        # What may overflow within the contract is judged element by element elsewhere.
        wrong = ~held & np.isfinite(bound)
        if wrong.any():
            place = tuple(int(x) for x in np.argwhere(wrong)[0])
            yield f"merged {name} differs from the whole in {np.count_nonzero(wrong)} elements (first {place})"


SPLIT_MERGE = Check(
    name=NAME,
    summary="the keys in two calls, merged by lse, equal the whole call within the bounds of all three",
    calls=4,
    raises=FAULTS,
    function=_split_merge,
)
