"""What a process of its own costs a candidate: bare calls and whole judged cases, in this process and through a worker.

    python benchmarks/bench_isolation.py [--candidate NAME] [--repeats N]

First table, one row for each call: least milliseconds of a direct call, of a session in this process and of a worker,
the ratio of worker to in-process session, and whether their outputs have the same bits. Second table, the same for a
judged case (inputs, reference, bounds, default checks; `run` against `run --in-process`), and whether both verdicts are
the same. Other load only ever adds to a time, so the least is the cost; rounds are interleaved, so that load meets all
alike. Last line: seconds to start a worker and to have an answer again after a crash. Set OMP_NUM_THREADS=1 for steady
figures.
"""

from __future__ import annotations

import os
import select
import signal
import statistics
import time
from collections.abc import Callable

import click

from verify.candidate import Call, Reply
from verify.candidates import load
from verify.case import Case, Recipe
from verify.inputs import make_inputs
from verify.problem import AttentionProblem, default_scale
from verify.runner import Judge, RunOptions
from verify.worker import InProcessSession, Outcome, ProcessSession

# (batch, seqlen, nheads, head_dim): from next to no arithmetic to some 10 ms of it
SIZES = ((1, 8, 1, 16), (1, 64, 2, 64), (2, 128, 4, 64), (1, 512, 4, 64))


def make_case(size: tuple[int, int, int, int], dtype: str) -> Case:
    """Causal attention on normal values."""
    batch, seqlen, nheads, head_dim = size
    problem = AttentionProblem(
        batch=batch,
        seqlen_q=seqlen,
        seqlen_k=seqlen,
        nheads=nheads,
        nheads_kv=nheads,
        head_dim=head_dim,
        head_dim_v=head_dim,
        softmax_scale=default_scale(head_dim),
        causal=True,
        dtype=dtype,
    )
    return Case(problem=problem, recipe=Recipe.of("normal"), seed=1)


def make_call(size: tuple[int, int, int, int], dtype: str) -> Call:
    """Forward and backward of that case."""
    case = make_case(size, dtype)
    return Call(problem=case.problem, arrays=make_inputs(case).arrays, backward=True)


def interleaved_ms(runs: tuple[Callable[[], object], ...], repeats: int) -> list[float]:
    """Least wall-clock milliseconds of each run over interleaved rounds, the first round left out."""
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(repeats + 1):
        for place, run in enumerate(runs):
            started = time.perf_counter()
            run()
            times[place].append(1e3 * (time.perf_counter() - started))
    return [min(series[1:]) for series in times]


def same_bits(left: Reply, right: Reply) -> bool:
    """Whether two replies hold the same outputs bit for bit."""
    return {name: array.tobytes() for name, array in left.outputs.items()} == {
        name: array.tobytes() for name, array in right.outputs.items()
    }


def reply_of(outcome: Outcome) -> Reply:
    """The reply, or an exit with the reason why there is none."""
    if outcome.reply is None:
        raise click.ClickException(f"{outcome.status}: {outcome.message}")
    return outcome.reply


def bench_calls(name: str, session: ProcessSession, repeats: int) -> None:
    """One line for each size and dtype."""
    candidate = load(name)
    here = InProcessSession(candidate)
    click.echo(f"{'case':>28} {'direct ms':>10} {'session ms':>10} {'worker ms':>10} {'ratio':>6} bits")
    for size in SIZES:
        for dtype in ("fp32", "bf16"):
            call = make_call(size, dtype)
            equal = same_bits(reply_of(here.call(call)), reply_of(session.call(call)))
            runs = (lambda c=call: candidate.run(c), lambda c=call: here.call(c), lambda c=call: session.call(c))
            direct, own, worker = interleaved_ms(runs, repeats)
            label = "b{}s{}h{}d{}".format(*size) + f" {dtype}"
            verdict = "same" if equal else "DIFFERENT"
            click.echo(f"{label:>28} {direct:10.3f} {own:10.3f} {worker:10.3f} {worker / own:6.2f} {verdict}")


def bench_cases(name: str, repeats: int) -> None:
    """One line for each size: the whole case, judged as `run` and as `run --in-process` do it."""
    judges = [Judge(RunOptions(candidates=(name,), in_process=here)) for here in (True, False)]
    click.echo(f"{'judged case':>28} {'in-process ms':>14} {'worker ms':>10} {'ratio':>6} verdict")
    try:
        for size in SIZES:
            case = make_case(size, "fp32")
            runs = tuple((lambda j=judge, c=case: next(j.judge(c)).verdict.status) for judge in judges)
            equal = runs[0]() == runs[1]()
            own, worker = interleaved_ms(runs, repeats)
            label = "b{}s{}h{}d{}".format(*size) + " fp32"
            click.echo(f"{label:>28} {own:14.3f} {worker:10.3f} {worker / own:6.2f} {'same' if equal else 'DIFFERENT'}")
    finally:
        for judge in judges:
            judge.close()


def kill_and_wait(pid: int) -> None:
    """Kill a process and return when it is dead."""
    ended = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    select.select([ended], [], [])
    os.close(ended)


def bench_starts(name: str, repeats: int) -> None:
    """Seconds to a first answer, and to an answer after the worker was killed."""
    call = make_call(SIZES[0], "fp32")
    first: list[float] = []
    again: list[float] = []
    for _ in range(repeats):
        with ProcessSession(name, timeout_s=60.0) as session:
            for series in (first, again):
                started = time.perf_counter()
                reply_of(session.call(call))
                series.append(time.perf_counter() - started)
                kill_and_wait(session.pid or 0)
    click.echo(f"first answer {statistics.median(first):.2f} s, after a kill {statistics.median(again):.2f} s")


@click.command()
@click.option("--candidate", default="numpy_tiled", show_default=True, help="Name known to verify.candidates.")
@click.option("--repeats", default=30, show_default=True, help="Interleaved rounds a case.")
def main(candidate: str, repeats: int) -> None:
    """Measure what isolation costs."""
    with ProcessSession(candidate, timeout_s=60.0) as session:
        bench_calls(candidate, session, repeats)
    bench_cases(candidate, max(1, repeats // 5))
    bench_starts(candidate, 5)


if __name__ == "__main__":
    main()
