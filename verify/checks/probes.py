"""Probes: the case's own problem with values for which a rare fault is a large error, not one within the rounding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from verify.case import Recipe
from verify.checks.base import Check
from verify.checks.case_run import CaseRun
from verify.checks.comparison import FAULTS
from verify.checks.probe_values import (
    OVERWHELMING_SCORE,
    designed,
    folded_identity,
    identity_block,
    needles,
    unit_values,
    zero_queries,
)
from verify.checks.variation import Array, Ledger, several_calls_refusal, skipped
from verify.dense import dense_sequences, take_outputs
from verify.verdict import Finding, Status

NAME = "probes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One design of values and whether its gradients are judged too."""

    label: str
    build: Callable[[CaseRun], CaseRun]
    backward: bool = False
    reads_probs: bool = False
    """out is P itself: exactly 0 at keys that a row does not see."""


def probes_of(run: CaseRun) -> Iterator[Probe]:
    """The probes that the problem admits."""
    problem = run.case.problem
    longest = max(problem.lengths(sequence)[1] for sequence in range(problem.batch))
    starts = {0, max(0, longest - problem.head_dim_v)}
    for start in sorted(starts):
        yield Probe(label=f"P read out from key {start}", build=partial(identity_block, start=start), reads_probs=True)
    yield Probe(label="P folded", build=folded_identity, backward=True)
    yield Probe(label="v = 1", build=unit_values, backward=True)
    yield Probe(label="q = 0", build=zero_queries, backward=True)
    yield Probe(label="needles", build=needles, backward=True)
    yield Probe(label="needles that outweigh all", build=partial(needles, score=OVERWHELMING_SCORE), backward=True)
    for level in (22.0, 100.0):
        recipe = Recipe.of("low_logits", level=level)
        yield Probe(label=f"scores about -{level:g}", build=designed(recipe), backward=level == 22.0)
    if problem.dtype != "fp16":
        # q k^T of fp16 operands may be kept in fp16, where -5e4 leaves no room.
        recipe = Recipe.of("low_logits", unscaled=50000.0)
        yield Probe(label="q k^T about -5e4", build=designed(recipe))
    yield Probe(label="v with a mean", build=designed(Recipe.of("v_mean", mean=8.0)), backward=True)


def _probes(run: CaseRun) -> Finding:
    refusal = several_calls_refusal(run)
    if refusal is not None:
        return skipped(NAME, refusal)
    ledger = Ledger(check=NAME, run=run)
    for probe in probes_of(run):
        varied = probe.build(run)
        backward = probe.backward and run.contract.capabilities.backward
        outputs = ledger.judge(varied, probe.label, backward=backward)
        if outputs is not None and probe.reads_probs:
            _judge_hidden(ledger, varied, probe.label, outputs)
    return ledger.finding()


def _judge_hidden(ledger: Ledger, varied: CaseRun, label: str, outputs: Mapping[str, Array]) -> None:
    """P is exactly 0 at a key that the row does not see, whatever the bound."""
    problem, arrays = varied.case.problem, varied.facts.inputs.arrays
    shape = varied.facts.reference(backward=False, with_dlse=False)["out"].shape
    if "out" not in outputs or outputs["out"].shape != shape:
        return
    for part in dense_sequences(problem, arrays):
        keep = part.keep
        if keep is None or 0 in keep.shape:
            continue
        out = take_outputs(problem, {"out": outputs["out"]}, part)["out"].astype(np.float64)
        group = np.repeat(part.v, part.group, axis=0)
        # Channel c of a row can differ from 0 only if the row sees a key whose v is not 0 there.
        visible = np.broadcast_to(keep, (part.nheads, *keep.shape[1:])).astype(np.float64) @ (group != 0)
        if (out[visible == 0] != 0).any():
            ledger.fail(Status.NUMERICAL, f"{label}: weight on keys that the row does not see, sequence {part.index}")


PROBES = Check(
    name=NAME,
    summary="P read out through v, needle keys, v = 1, q = 0, scores far below 0, v with a mean",
    calls=11,
    raises=FAULTS,
    function=_probes,
)
