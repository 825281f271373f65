"""All other sequences of a batch full of NaN: what belongs to one sequence stays as it was, to the bit or in bound.

Unlike a relation, the changed call is not judged by its own reference: only the untouched sequence is looked at.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from verify.checks.case_run import CaseRun
from verify.checks.places import key_index, row_index
from verify.checks.variation import Array, Ledger, Values, logical_values, owed_outputs, same_bits, vary
from verify.verdict import Status

POISONED = ("q", "k", "v", "dout")
BY_KEY = ("k", "v", "dk", "dv")
LABEL = "other sequences NaN"


def poisoned_neighbours(run: CaseRun) -> tuple[int, CaseRun] | None:
    """(sequence that stays, the run); None where sequences share keys or there is one only."""
    p = run.case.problem
    kept = [index for index in range(p.batch) if 0 not in p.lengths(index)]
    if p.batch < 2 or not kept or p.page_size or p.layout == "broadcast":
        return None
    values = logical_values(run)
    for sequence in set(range(p.batch)) - {kept[-1]}:
        for name in POISONED:
            values[name][_places(run, values, name, sequence)] = np.nan
    return kept[-1], vary(run, values)


def judge_neighbours(ledger: Ledger, first: Values) -> None:
    """Note what the other sequences' NaN did to the one that stays."""
    found = poisoned_neighbours(ledger.run)
    if found is None:
        return
    sequence, varied = found
    run, backward = ledger.run, ledger.run.contract.capabilities.backward
    outputs = ledger.outputs(varied, LABEL, backward=backward)
    if outputs is None:
        return
    for name in owed_outputs(run, backward=backward):
        if name not in ("dbias", "dsink") and not _unchanged(run, first, outputs, name, sequence):
            ledger.fail(Status.NONFINITE, f"{LABEL}: {name} of sequence {sequence} is another")


def _unchanged(run: CaseRun, first: Values, outputs: Mapping[str, Array], name: str, sequence: int) -> bool:
    if name not in outputs or outputs[name].shape != first[name].shape:
        return False
    place = _places(run, run.facts.inputs.arrays, name, sequence)
    before, after = first[name][place], outputs[name][place]
    if same_bits(before, after):
        return True
    backward = name not in ("out", "lse")
    key = {"backward": backward, "with_dlse": backward and run.with_dlse}
    reference = run.facts.reference(**key)[name][place]
    bound = run.facts.bounds(run.arithmetic, **key)[name].total[place]
    with np.errstate(invalid="ignore"):
        held = (after == reference) | (np.abs(after.astype(np.float64) - reference) <= bound)
    return bool((held | np.isinf(bound)).all())


def _places(run: CaseRun, arrays: Mapping[str, Array], name: str, sequence: int) -> tuple[slice | int, ...]:
    """Index of one sequence in an array of rows, keys or row values, padding left out."""
    p = run.case.problem
    rows, keys = p.lengths(sequence)
    if name == "lse":
        start = row_index(p, sequence, 0)
        return (slice(None), slice(start[0], start[0] + rows)) if p.is_ragged else (sequence,)
    count = keys if name in BY_KEY else rows
    first = key_index(p, arrays, sequence, 0) if name in BY_KEY else row_index(p, sequence, 0)
    return (*first[:-1], slice(first[-1], first[-1] + count))
