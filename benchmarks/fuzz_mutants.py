"""How soon fuzzing finds seeded faults of the CUDA kernels, and how small the cases get.

    python benchmarks/fuzz_mutants.py [--count 40] [--time 60] [--jobs 2] [--only NAME]

Runs the trials of `verify.fuzz.trials`, as `verify selftest --fuzz` does, and prints a row each: kind, name, cases and
seconds until the fault (processes and compilation included), seconds and calls to make it small, rows x keys and
non-zero values of q and k of the smallest case, and the fault. Last line: how many were found, median and largest
seconds, and the share of small cases.
"""

from __future__ import annotations

import click

from verify.fuzz.trials import BUDGET_S, Trial, fuzz_trials, trial_mutants, trials_summary


def row(trial: Trial) -> str:
    """One line of the table."""
    head = f"{trial.kind:<18}{trial.mutant:<36}"
    if trial.seconds is None:
        return f"{head}not found in {trial.examples} cases"
    return (
        f"{head}{trial.examples:5} cases {trial.seconds:5.1f} s  "
        f"{trial.minimise_seconds:5.1f} s {trial.minimise_calls:5} calls  "
        f"{trial.rows:3} x {trial.keys:3}  {trial.nonzero} non-zero  {trial.check}"
    )


@click.command()
@click.option("--count", default=40, show_default=True)
@click.option("--time", "seconds", default=BUDGET_S, show_default=True, help="Budget of each campaign.")
@click.option("--jobs", default=2, show_default=True)
@click.option("--only", default="", help="Mutants whose name contains this.")
def main(count: int, seconds: float, jobs: int, only: str) -> None:
    """Print the table."""
    trials = fuzz_trials(
        trial_mutants(count, only), jobs=jobs, seconds=seconds, on_trial=lambda trial: print(row(trial), flush=True)
    )
    summary = trials_summary(trials)
    print(
        f"found {summary['found']} of {summary['tried']}; seconds until the fault: median {summary['median_seconds']}, "
        f"largest {summary['largest_seconds']}; small cases {summary['small']} of {summary['found']}"
    )


if __name__ == "__main__":
    main()
