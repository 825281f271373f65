"""Rows that see one key: P is 1 there, so out is that key's v to the bit, whatever the order of work."""

from __future__ import annotations

import numpy as np

from verify.checks.case_run import CaseRun
from verify.checks.variation import Values
from verify.dense import dense_sequences, take_outputs


def single_key_faults(run: CaseRun, outputs: Values) -> list[str]:
    """A line for every sequence with rows that see one key and whose out is not its v.

    Nothing where a sink shares the weight, dropout scales it, or the contract does not promise that P = 1 at the
    maximum: fl(S c - fl(m c)) of a fused multiply-add is not 0 at S = m.
    """
    problem, arithmetic = run.case.problem, run.arithmetic
    promised = arithmetic.argmax_exact and not arithmetic.exp2_fma
    if problem.sink or problem.dropout_p > 0 or not promised or "out" not in outputs:
        return []
    faults = []
    for part in dense_sequences(problem, run.facts.inputs.arrays):
        shape = (part.nheads, part.seqlen_q, part.seqlen_k)
        if 0 in shape:
            continue
        seen = np.ones(shape, dtype=bool) if part.keep is None else np.broadcast_to(part.keep, shape)
        if part.bias is not None:
            seen = seen & ~np.isneginf(part.bias)
        alone = seen.sum(axis=-1) == 1
        out = take_outputs(problem, {"out": outputs["out"]}, part)["out"].astype(np.float64)
        heads, rows = np.nonzero(alone)
        expected = part.v[heads // part.group, seen[heads, rows].argmax(axis=-1)]
        wrong = (out[heads, rows] != expected).any(axis=-1) & np.isfinite(expected).all(axis=-1)
        if wrong.any():
            first = (int(heads[wrong][0]), int(rows[wrong][0]))
            count = np.count_nonzero(wrong)
            faults.append(f"out is not v in {count} rows that see one key, sequence {part.index} (head, row) {first}")
    return faults
