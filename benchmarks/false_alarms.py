"""Campaign for false alarms: correct emulated kernels in many declared arithmetics against the derived bounds.

Every violation is a missing rounding term or a wrong contract, never a reason to widen a constant. Prints the number of
cases, each violation with its case id, and the distribution of error/bound by dtype and tensor.

    python benchmarks/false_alarms.py --cases 2000 --seed 1
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as hypothesis_seed
from hypothesis import strategies as st
from numpy.typing import NDArray

from verify.candidate import Call, Candidate, RefusedError
from verify.candidates import load
from verify.candidates.numpy_tiled.variants import VARIANTS
from verify.case import Case
from verify.inputs import make_inputs
from verify.oracle import reference_outputs
from verify.strategies import cases
from verify.tolerance import Bound, derive_bounds

EDGES = np.concatenate([np.linspace(0.0, 1.0, 201), [np.inf]])
"""Bins of error/bound; the last one holds violations."""


@dataclass(slots=True)
class Tally:
    """What the campaign has seen of one (dtype, tensor)."""

    elements: int = 0
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(len(EDGES) - 1, dtype=np.int64))
    largest: float = 0.0
    confidence: float = 0.0
    """Largest number of deviations that an error needed beyond the hard terms and the output rounding."""
    unchecked: int = 0
    """Elements whose bound is infinite."""

    def add(self, ratio: NDArray[np.float64], required: float, unchecked: int) -> None:
        """Take in the ratios of one output."""
        self.elements += ratio.size
        self.counts += np.histogram(ratio, EDGES)[0]
        self.largest = max(self.largest, float(ratio.max(initial=0.0)))
        self.confidence = max(self.confidence, required)
        self.unchecked += unchecked

    def quantile(self, share: float) -> float:
        """Upper edge of the bin that holds the quantile."""
        reached = np.searchsorted(np.cumsum(self.counts), share * max(self.elements, 1))
        return float(EDGES[min(int(reached) + 1, len(EDGES) - 1)])


@dataclass(slots=True)
class Campaign:
    """All tallies, and one line a violation."""

    tallies: dict[tuple[str, str], Tally] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    run: int = 0
    bound_seconds: float = 0.0

    def judge(self, case: Case, name: str) -> None:
        """Run one case on one candidate and compare every output that it returns."""
        problem, arrays = case.problem, make_inputs(case).arrays
        candidate = load(name)
        capabilities = candidate.contract.capabilities
        if capabilities.refusal(problem):
            return
        backward = capabilities.backward
        with_dlse = backward and capabilities.takes_dlse and "dlse" in arrays and case.seed % 2 == 0
        outputs = _run(candidate, Call(problem=problem, arrays=arrays, backward=backward, with_dlse=with_dlse))
        if outputs is None:
            return
        if "dropout_keep" in outputs:
            # It drew its own mask: judge what it did with that mask.
            arrays = {**arrays, "dropout_keep": outputs["dropout_keep"]}
        reference = reference_outputs(problem, arrays, backward=backward, with_dlse=with_dlse).outputs
        started = time.process_time()
        arithmetic = candidate.contract.arithmetic[problem.dtype]
        bounds = derive_bounds(problem, arrays, reference, arithmetic, backward=backward, with_dlse=with_dlse)
        self.bound_seconds += time.process_time() - started
        self.run += 1
        for tensor in bounds.keys() & outputs.keys():
            self._compare(case, name, outputs, reference, bounds[tensor])

    def _compare(
        self,
        case: Case,
        name: str,
        outputs: Mapping[str, NDArray[Any]],
        reference: Mapping[str, NDArray[np.float64]],
        bound: Bound,
    ) -> None:
        got, expected = outputs[bound.tensor].astype(np.float64), reference[bound.tensor]
        checkable = np.isfinite(bound.total)
        overflowed = bound.overflow_ok & np.isinf(got) & (np.signbit(got) == np.signbit(expected))
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            same = (got == expected) | (np.isnan(got) & np.isnan(expected)) | overflowed | ~checkable
            error = np.where(same, 0.0, np.abs(got - expected))
            error = np.where(np.isnan(error), np.inf, error)
            ratio = np.where(error == 0, 0.0, error / bound.total)
            beyond = error - sum(bound.hard.values()) - bound.output_half_ulp
            needed = np.where((beyond > 0) & np.isfinite(error), beyond / bound.sigma, 0.0)
        required = float(needed[bound.worst_case > 0].max(initial=0.0))
        tally = self.tallies.setdefault((case.problem.dtype, bound.tensor), Tally())
        tally.add(ratio.ravel(), required, int(np.count_nonzero(~checkable)))
        if ratio.size and float(ratio.max()) > 1.0:
            where = np.unravel_index(int(ratio.argmax()), ratio.shape)
            place = tuple(int(i) for i in where)
            values = f"got {got[where]:.6g} expected {expected[where]:.6g} bound {bound.total[where]:.3g}"
            size = f"ratio {ratio.max():.3f}, {np.count_nonzero(ratio > 1)} elements, worst {place}"
            self.violations.append(f"{bound.tensor} {size}: {values} {name} {case.case_id}")

    def report(self) -> str:
        """Table of tallies and the violations."""
        lines = [f"{self.run} cases, {len(self.violations)} violations, bounds {self.bound_seconds:.1f} s of CPU time"]
        lines.append("| dtype | tensor | elements | median | p99 | p99.99 | max | required c | not checkable |")
        lines.append("|---|---|---|---|---|---|---|---|---|")
        for (dtype, tensor), t in sorted(self.tallies.items()):
            quantiles = " | ".join(f"{t.quantile(share):.3f}" for share in (0.5, 0.99, 0.9999))
            share = t.unchecked / max(t.elements, 1)
            cells = f"{t.elements} | {quantiles} | {t.largest:.3f} | {t.confidence:.1f} | {share:.2%}"
            lines.append(f"| {dtype} | {tensor} | {cells} |")
        return "\n".join([*lines, *self.violations])


def _run(candidate: Candidate, call: Call) -> Mapping[str, NDArray[Any]] | None:
    """Outputs, or None where the candidate declines."""
    try:
        return candidate.run(call).outputs
    except RefusedError:
        return None


@click.command()
@click.option("--cases", "count", default=2000, help="Cases to draw.")
@click.option("--seed", default=0, help="Seed of the drawing.")
@click.option("--candidate", "only", default="", help="Run this candidate only; empty = any variant of numpy_tiled.")
@click.option("--recipe", "recipes", multiple=True, help="Draw these recipes only, for example repeats.")
@click.option("--max-seqlen", default=96)
@click.option("--max-score-elements", default=12_000)
@click.option("--output", type=click.Path(path_type=Path), default=None, help="JSON of the counts.")
def main(
    count: int,
    seed: int,
    only: str,
    recipes: tuple[str, ...],
    max_seqlen: int,
    max_score_elements: int,
    output: Path | None,
) -> None:
    """Run the campaign and print the report; exit status 1 on any violation."""
    campaign = Campaign()
    names = [only] if only else [f"numpy_tiled:{variant}" for variant in VARIANTS]
    capabilities = load(only).contract.capabilities if only else None
    drawn = cases(
        capabilities=capabilities,
        recipe_names=recipes or None,
        max_seqlen=max_seqlen,
        max_score_elements=max_score_elements,
    )

    @hypothesis_seed(seed)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(case=drawn, name=st.sampled_from(names))
    def run(case: Case, name: str) -> None:
        campaign.judge(case, name)

    run()
    click.echo(campaign.report())
    if output is not None:
        counts = {"|".join(key): tally.counts.tolist() for key, tally in campaign.tallies.items()}
        output.write_text(json.dumps({"cases": campaign.run, "violations": campaign.violations, "counts": counts}))
    raise SystemExit(bool(campaign.violations))


if __name__ == "__main__":
    main()
