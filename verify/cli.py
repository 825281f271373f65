"""The command line: run (default), list, repro, doctor. Exit 0 right, 1 findings, 2 bad usage, 3 the harness failed."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import Any

import click

from verify.commands.common import PROFILES
from verify.environment import check_packages
from verify.errors import UsageError

EXIT_FINDINGS, EXIT_USAGE, EXIT_HARNESS = 1, 2, 3
DEFAULT_OUT = Path("attn-verify-report")


class DefaultToRun(click.Group):
    """A group whose command is `run` when the first word names no command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = {option for parameter in self.get_params(ctx) for option in parameter.opts}
        if not args or (args[0] not in self.commands and args[0] not in own):
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group(cls=DefaultToRun, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="attn-verify")
def cli() -> None:
    """Judge attention kernels against an fp64 reference and bounds derived from their declared arithmetic."""
    check_packages()


def _candidate_options(function: Any) -> Any:
    options = (
        click.option("--checks", default="", help="Comma-separated names of checks; all of them by default."),
        click.option("--device", type=click.Choice(["auto", "cpu", "gpu"]), default="auto", show_default=True),
        click.option("--timeout", "timeout_s", default=60.0, show_default=True, help="Seconds for one call."),
        click.option("--in-process", is_flag=True, help="Run the candidate in this process (debugging)."),
        click.option("--python", "python", default=None, help="Interpreter of the candidate's own process."),
    )
    for option in reversed(options):
        function = option(function)
    return function


@cli.command()
@click.option(
    "--candidate", "candidates", multiple=True, help="Candidate to run; repeatable; all available by default."
)
@click.option("--profile", type=click.Choice(list(PROFILES)), default="quick", show_default=True)
@click.option("-k", "select", default="", help="Only cases whose label or id contains this text.")
@click.option(
    "--capture", type=click.Path(path_type=Path), default=None, help="Run the q, k, v of this .npz or .safetensors."
)
@click.option("--regressions", type=click.Path(path_type=Path), default=None, help="Pinned faults, tried first.")
@click.option("--seed", default=0, show_default=True, help="Seed of the cases' values.")
@click.option("--jobs", default=min(os.cpu_count() or 1, 8), show_default="cores, at most 8", help="Judging processes.")
@click.option(
    "--out", type=click.Path(path_type=Path), default=DEFAULT_OUT, show_default=True, help="Where results go."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON summary on stdout, nothing else.")
@_candidate_options
def run(**options: Any) -> None:
    """Judge candidates on the cases of a profile and write a report."""
    from verify.commands.run import run_command

    sys.exit(EXIT_FINDINGS if run_command(**options) else 0)


@cli.command()
@click.option("--candidate", required=True)
@click.option("--time", "time_s", type=float, default=None, help="Seconds; without --time and --examples: 60.")
@click.option("--examples", type=int, default=None, help="Cases to judge, over all processes.")
@click.option("--jobs", default=min(os.cpu_count() or 1, 8), show_default="cores, at most 8", help="Processes.")
@click.option("--seed", default=0, show_default=True, help="Seed of the campaign.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("attn-verify-fuzz"), show_default=True)
@click.option("--resume", type=click.Path(path_type=Path), default=None, help="Go on with the campaign of this folder.")
@click.option("--keep-going", is_flag=True, help="Collect distinct faults until the budget ends.")
@click.option("--save", is_flag=True, help="Write a bundle (inputs, got, expected, bound) of each fault.")
@click.option("--regressions", type=click.Path(path_type=Path), default=None, help="Folder of pinned faults.")
@click.option("--database", default="", help="Folder or redis:// address of the examples; the cache by default.")
@click.option("--max-seqlen", default=160, show_default=True)
@click.option("--max-head-dim", type=int, default=None)
@click.option("--json", "as_json", is_flag=True, help="One JSON summary on stdout, nothing else.")
@_candidate_options
def fuzz(**options: Any) -> None:
    """Draw cases until one fails or the budget ends; hand back the smallest failing case."""
    from verify.commands.fuzz import fuzz_command

    sys.exit(EXIT_FINDINGS if fuzz_command(**options) else 0)


@cli.command()
@click.option("--profile", type=click.Choice(["quick", "full"]), default="quick", show_default=True)
@click.option("--mutants", "pattern", default="", help="Only mutants and impostors whose name contains this text.")
@click.option(
    "--only",
    type=click.Choice(["hunts", "honesty", "rules", "fuzz"]),
    multiple=True,
    help="Run this part; the others stay as OUT holds them, where the same sources made them. Repeatable.",
)
@click.option("--honest-checks", type=int, default=None, help="Honest case-checks; quick 2000, full 100000.")
@click.option("--fuzz", type=int, default=None, help="Mutants on which fuzzing is tried; quick 0, full 40.")
@click.option("--seed", default=0, show_default=True, help="Seed of the honest cases and of the fuzzing.")
@click.option("--jobs", default=min(os.cpu_count() or 1, 16), show_default="cores, at most 16", help="Processes.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("attn-verify-selftest"), show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON summary on stdout, nothing else.")
def selftest(**options: Any) -> None:
    """Measure the checks: mutants and impostors that they must reject, honest kernels that they must not."""
    from verify.commands.selftest import selftest_command

    sys.exit(EXIT_FINDINGS if selftest_command(**options) else 0)


@cli.command()
@click.option("--style", type=click.Choice(["torch", "numpy", "cu"]), default="torch", show_default=True)
def template(style: str) -> None:
    """Print a commented starting file for a kernel of your own; it runs as it is."""
    from verify.commands.template import template_command

    template_command(style=style)


@cli.command()
@click.argument("records", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), default=DEFAULT_OUT, show_default=True, help="Where it goes.")
def report(records: tuple[Path, ...], out: Path) -> None:
    """Write the report again from journals (records-*.jsonl), of a run that was stopped too."""
    from verify.commands.report import report_command

    report_command(paths=records, out=out)


@cli.command("list")
@click.argument("section", required=False, type=click.Choice(["candidates", "checks", "recipes", "profiles"]))
@click.option("--json", "as_json", is_flag=True, help="JSON instead of tables.")
def list_(section: str | None, as_json: bool) -> None:
    """List candidates, checks, recipes and profiles, or one SECTION of them."""
    from verify.commands.listing import list_command

    list_command(section=section, as_json=as_json)


@cli.command()
@click.argument("case_id")
@click.option("--candidate", required=True)
@click.option(
    "--save", type=click.Path(path_type=Path), default=None, help="Write inputs, got, expected, bound as .npz."
)
@_candidate_options
def repro(**options: Any) -> None:
    """Repeat one case on one candidate and show everything."""
    from verify.commands.repro import repro_command

    sys.exit(EXIT_FINDINGS if repro_command(**options) else 0)


@cli.command()
@click.option("--arch", required=True, help="Architecture, e.g. sm_75, sm_80, sm_90.")
@click.option("--json", "as_json", is_flag=True, help="JSON instead of a table.")
def tiles(arch: str, as_json: bool) -> None:
    """Say which tiles of this project's kernels fit an architecture's shared memory; needs no GPU."""
    from verify.commands.tiles import tiles_command

    tiles_command(arch=arch, as_json=as_json)


@cli.command("conformance-table")
@click.argument("journals", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), default=Path("docs/conformance.md"), show_default=True)
def conformance_table(journals: tuple[Path, ...], out: Path) -> None:
    """Write the table of candidates x features from the records-*.jsonl of earlier runs."""
    from verify.commands.conformance_table import conformance_table_command

    conformance_table_command(journals=journals, out=out)


@cli.command()
def doctor() -> None:
    """Say what works on this machine and what is missing."""
    from verify.commands.doctor import doctor_command

    sys.exit(0 if doctor_command() else EXIT_HARNESS)


def main() -> None:
    """Entry point: maps errors to one line and an exit code."""
    try:
        cli(standalone_mode=False)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(EXIT_USAGE)
    except (UsageError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(EXIT_USAGE if isinstance(error, UsageError) else EXIT_HARNESS)
    except (KeyboardInterrupt, click.Abort):
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except Exception as error:  # noqa: BLE001 - the outermost frame: whatever is left is a fault of the harness
        traceback.print_exc()
        print(f"error: the harness failed: {type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(EXIT_HARNESS)
