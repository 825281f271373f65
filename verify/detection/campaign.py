"""The hunt for every mutant and impostor, stage by stage: the same cases, checks and order for all."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from verify.candidate import Candidate
from verify.candidates import load
from verify.case import Case
from verify.checks import DEFAULT, SEVERAL_CALLS, Check
from verify.detection.bench import Prepared, prepare
from verify.detection.cases import scoring_cases
from verify.detection.cheats import cheat_names
from verify.detection.forked import Ended, run_forked
from verify.detection.hunt import Hunt, Kill, hunt
from verify.detection.impostors import impostor_names
from verify.detection.mutant_candidate import SmallKernel
from verify.detection.mutants import catalogue
from verify.verdict import Status

IMPOSTOR = "impostor:"
MUTANT = "mutant:"
HONEST_OF_IMPOSTORS = "numpy_tiled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One pass over the survivors of the stages before."""

    name: str
    dtype: str
    n_cases: int
    grid: str = "quick"
    """Profile of the grid that the cases come from."""
    variant: str = ""
    """Variant of the CPU backend: checked, reversed, random7."""
    checks: tuple[Check, ...] = DEFAULT
    timeout_s: float = 120.0


QUICK = (
    Stage(name="fp32", dtype="fp32", n_cases=64),
    Stage(name="bf16", dtype="bf16", n_cases=12),
    Stage(name="fp16", dtype="fp16", n_cases=12),
    Stage(name="checked build", dtype="fp32", n_cases=5, variant="checked"),
)
FULL = (
    Stage(name="fp32", dtype="fp32", n_cases=10_000),
    Stage(name="several calls", dtype="fp32", n_cases=30, checks=SEVERAL_CALLS, timeout_s=300.0),
    Stage(name="bf16", dtype="bf16", n_cases=60),
    Stage(name="fp16", dtype="fp16", n_cases=60),
    Stage(name="checked build", dtype="fp32", n_cases=30, variant="checked", timeout_s=300.0),
    Stage(name="random schedule", dtype="fp32", n_cases=30, variant="random7"),
    Stage(name="full grid", dtype="fp32", n_cases=10_000, grid="full", timeout_s=600.0),
)
PROFILES = {"quick": QUICK, "full": FULL}
QUICK_EVERY = 3
"""The quick profile takes every third mutant of the catalogue, in catalogue order, and no equivalent one: a compilation
costs 1.3 s of processor time, and 3 minutes on 2 cores must do."""


def targets(profile: str, pattern: str) -> tuple[str, ...]:
    """Names of the mutants and impostors to hunt, prefix included."""
    mutants = tuple(catalogue())
    if profile == "quick" and not pattern:
        mutants = tuple(mutant.name for mutant in catalogue().values() if not mutant.equivalent)[::QUICK_EVERY]
    names = (*(MUTANT + name for name in mutants), *(IMPOSTOR + name for name in (*impostor_names(), *cheat_names())))
    return tuple(name for name in names if pattern in name)


def honest_name(target: str) -> str:
    """Name of the unchanged candidate behind a target."""
    if target.startswith(IMPOSTOR):
        return HONEST_OF_IMPOSTORS
    return catalogue()[target.removeprefix(MUTANT)].kernel


def build_honest(name: str, variant: str) -> Candidate:
    """The unchanged candidate with the small tile of the mutants, in the variant of a stage."""
    return load(name) if name == HONEST_OF_IMPOSTORS else SmallKernel(name, variant)


def build_target(name: str, variant: str) -> Candidate:
    """A target in the variant of a stage; impostors have none."""
    return load(f"{name}:{variant}" if variant and name.startswith(MUTANT) else name)


def run_campaign(
    names: Sequence[str],
    stages: Sequence[Stage],
    *,
    jobs: int,
    all_kills: bool = False,
    on_bench: Callable[[Stage, str, list[Prepared]], None] = lambda stage, honest, bench: None,
    on_hunt: Callable[[Hunt], None] = lambda hunt: None,
) -> list[Hunt]:
    """Hunt every target through the stages until it is killed; one result each, in the order of the names.

    `on_bench` sees the honest findings of a stage, `on_hunt` each result, that of the stages before joined in.
    """
    results: dict[str, Hunt] = {}
    asked: set[tuple[str, str, tuple[Check, ...], Case]] = set()
    for stage in stages:
        left = [name for name in names if name not in results or _goes_on(results[name])]
        for honest in dict.fromkeys(honest_name(name) for name in left):
            mine = [name for name in left if honest_name(name) == honest]
            if stage.variant and honest == HONEST_OF_IMPOSTORS:
                continue
            # What an earlier stage asked all the same has been survived by all who are left.
            questions = [
                (honest, stage.variant, stage.checks, case) for case in scoring_cases(stage.dtype, profile=stage.grid)
            ]
            new = [question for question in questions if question not in asked][: stage.n_cases]
            asked.update(new)
            cases = [case for *_, case in new]
            bench = list(prepare(build_honest(honest, stage.variant), cases, stage.checks))
            on_bench(stage, honest, bench)
            for found in _hunt_all(mine, stage, bench, jobs, all_kills):
                results[found.name] = _joined(results.get(found.name), found)
                on_hunt(results[found.name])
    return [results[name] for name in names]


def _goes_on(found: Hunt) -> bool:
    return found.kill is None and not found.broken


def _joined(before: Hunt | None, found: Hunt) -> Hunt:
    """The result with the cases and seconds of earlier stages added."""
    if before is None:
        return found
    return replace(
        found,
        cases=before.cases + found.cases,
        seconds=before.seconds + found.seconds,
        kills=before.kills + found.kills,
    )


def _hunt_all(
    names: Sequence[str], stage: Stage, bench: Sequence[Prepared], jobs: int, all_kills: bool
) -> Iterator[Hunt]:
    tasks = [
        functools.partial(
            hunt, functools.partial(build_target, name, stage.variant), name, bench, stage.checks, all_kills=all_kills
        )
        for name in names
    ]
    for ended in run_forked(tasks, jobs=jobs, timeout_s=stage.timeout_s):
        yield replace(_result(ended, names[ended.place], bench), stage=stage.name)


def _result(ended: Ended[Hunt], name: str, bench: Sequence[Prepared]) -> Hunt:
    """The child's own result, or a kill by the case during which it died or hung."""
    if ended.result is not None:
        return ended.result
    ids = [prepared.case.case_id for prepared in bench]
    if ended.note not in ids:
        return Hunt(name=name, broken="ended before its first case", seconds=ended.seconds)
    status, reason = (Status.HANG, "no end in time") if ended.hung else (Status.CRASH, "the process died")
    kill = Kill(case_id=ended.note, check="process", status=status, reason=reason, causes=("memory",))
    return Hunt(name=name, kill=kill, cases=ids.index(ended.note) + 1, seconds=ended.seconds)
