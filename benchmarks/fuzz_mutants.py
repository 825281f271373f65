"""How soon fuzzing finds seeded faults of the CUDA kernels, and how small the cases get.

    python benchmarks/fuzz_mutants.py [--count 40] [--time 60] [--jobs 2] [--only NAME]

One campaign a mutant from a cold start (nothing compiled, no database), mutants taken in turn from all kinds, without
those that no check is known to tell from the original. Prints a row each: kind, name, cases and seconds until the fault
(compilation included), seconds and calls to make it small, scores (seqlen_q x seqlen_k) and non-zero values of q and k
of the smallest case, and the fault. Last line: how many were found, median and largest seconds, and the share of cases
with at most 64 scores and 16 non-zero values.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path

import click

MAX_SCORES, MAX_NONZERO = 64, 16
HEAD_DIM = 32
"""Mutants are built with one small tile, for head dims up to this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What a campaign on one mutant gave."""

    seconds: float
    is_small: bool


def mutants_in_turn() -> list[tuple[str, str]]:
    """(kind, name), one of each kind after another; those that are known to change nothing are left out."""
    from verify.detection.mutants import catalogue
    from verify.detection.survivors import REASONS

    by_kind: dict[str, list[str]] = defaultdict(list)
    for name, mutant in catalogue().items():
        if name not in REASONS:
            by_kind[mutant.kind].append(name)
    columns = ([(kind, name) for name in sorted(by_kind[kind])] for kind in sorted(by_kind))
    return [pair for pair in chain.from_iterable(zip_longest(*columns)) if pair is not None]


def fuzzed(kind: str, name: str, seconds: float, jobs: int) -> Row | None:
    """Run one campaign, print its row."""
    from verify.case import Case
    from verify.fuzz import Plan, run_campaign
    from verify.fuzz.pinned_values import pin

    with tempfile.TemporaryDirectory() as folder:
        os.environ["ATTN_VERIFY_CACHE"] = folder
        plan = Plan(candidate=f"mutant:{name}", out=Path(folder), seconds=seconds, jobs=jobs, max_head_dim=HEAD_DIM)
        state, _ = run_campaign(plan)
    if not state.faults:
        print(f"{kind:<18}{name:<36}not found in {state.examples} cases", flush=True)
        return None
    fault = next(iter(state.faults.values()))
    case = Case.parse(fault.case_id)
    pinned = pin(case)
    scores = case.problem.seqlen_q * case.problem.seqlen_k
    nonzero = pinned.nonzero if pinned is not None else -1
    found, reduced = fault.found, fault.reduced
    effort = f"{reduced.seconds:5.1f} s {reduced.calls:5} calls" if reduced else "not made small"
    print(
        f"{kind:<18}{name:<36}{found.examples:5} cases {found.seconds:5.1f} s  {effort}  "
        f"{scores:4} scores {nonzero:3} non-zero  {fault.key}",
        flush=True,
    )
    return Row(seconds=found.seconds, is_small=scores <= MAX_SCORES and 0 <= nonzero <= MAX_NONZERO)


@click.command()
@click.option("--count", default=40, show_default=True)
@click.option("--time", "seconds", default=60.0, show_default=True, help="Budget of each campaign.")
@click.option("--jobs", default=2, show_default=True)
@click.option("--only", default="", help="Mutants whose name contains this.")
def main(count: int, seconds: float, jobs: int, only: str) -> None:
    """Print the table."""
    chosen = [pair for pair in mutants_in_turn() if only in pair[1]][:count]
    rows = [row for kind, name in chosen if (row := fuzzed(kind, name, seconds, jobs)) is not None]
    if rows:
        times = [row.seconds for row in rows]
        small = sum(row.is_small for row in rows) / len(rows)
        print(
            f"found {len(rows)} of {len(chosen)}; seconds until the fault: median {statistics.median(times):.1f}, "
            f"largest {max(times):.1f}; small cases {small:.0%}"
        )


if __name__ == "__main__":
    main()
