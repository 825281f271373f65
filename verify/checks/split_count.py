"""Split-count check: the number of parts that the range of keys is split into is nobody's business but the kernel's."""

from __future__ import annotations

from dataclasses import replace

from verify.checks.base import Check
from verify.checks.case_run import CaseRun
from verify.checks.comparison import FAULTS
from verify.checks.variation import Array, Ledger, owed_outputs, several_calls_refusal, skipped
from verify.verdict import Finding, Status

NAME = "split_count"


def _split_count(run: CaseRun) -> Finding:
    able = run.contract.capabilities
    if not able.split_counts:
        return skipped(NAME, "no number of splits is declared")
    refusal = several_calls_refusal(run)
    if refusal is not None:
        return skipped(NAME, refusal)
    ledger = Ledger(check=NAME, run=run)
    first: dict[str, Array] | None = None
    for count in able.split_counts:
        label = f"{count} splits"
        outputs = ledger.judge(_with_splits(run, count), label, backward=able.backward)
        if outputs is None or not able.splits_bitwise:
            continue
        if first is None:
            first = dict(outputs)
        names = owed_outputs(run, backward=able.backward)
        ledger.same_bits(first, outputs, names, Status.NUMERICAL, f"with {label} than with {able.split_counts[0]}")
    return ledger.finding()


def _with_splits(run: CaseRun, count: int) -> CaseRun:
    """The case's own run with that number of splits; reference and bounds are those of the case."""
    facts = replace(run.facts, reference_ms=0.0, bound_ms=0.0)
    return CaseRun(facts=facts, contract=run.contract, session=run.session, splits=count)


SPLIT_COUNT = Check(
    name=NAME,
    summary="every declared number of splits of the keys is right, and gives the same bits where that is declared",
    calls=4,
    raises=FAULTS,
    function=_split_count,
)
