"""Checked examples a second: this project's judging beside a plain Hypothesis test with assert_close.

    python benchmarks/bench_fuzz.py [--candidate torch_math] [--seconds 10] [--jobs 2]

Both draw small shapes (at most 16 rows and keys), run the candidate forward and backward in their own process and judge
out and the gradients. The plain test compares with PyTorch's own fp64 math attention at a fixed tolerance: no lse, no
derived bound, no layouts, masks or traps. `comparison` runs the checks that compare outputs (contract, forward, lse,
backward, aggregate), `campaign` adds the costly ones on one case in four, as a campaign does. Prints one line a
contender: examples a second by wall clock, and CPU milliseconds an example, which a loaded machine moves less.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from collections.abc import Callable

import click
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from verify.case import Case
from verify.strategies import cases

ROUND = 500
WARM_UP_S = 4.0
SMALL = {"max_seqlen": 16, "max_batch": 2, "max_score_elements": 1024}


def drawn(number: int, strategy: st.SearchStrategy[Case], examine: Callable[[Case], None]) -> int:
    """One Hypothesis round; the number of its examples."""
    count = 0

    @seed(number)
    @settings(
        max_examples=ROUND,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.target),
        suppress_health_check=list(HealthCheck),
    )
    @given(case=strategy)
    def examples(case: Case) -> None:
        nonlocal count
        examine(case)
        count += 1

    examples()
    return count


def measured(contender: str, candidate: str, seconds: float, lane: int) -> tuple[int, float]:
    """Examples until the deadline and CPU seconds, after a warm-up."""
    import torch

    from verify.candidates import load

    torch.set_num_threads(1)
    declared = load(candidate).contract.capabilities
    if contender != "assert_close":
        from verify.fuzz.judging import EVERY_CASE, CaseJudge

        judge = CaseJudge(in_process=True, checks=() if contender == "campaign" else EVERY_CASE)
        strategy = cases(capabilities=declared, **SMALL)

        def examine(case: Case) -> None:
            judge.judge(case, candidate)
            stop_when_late()
    else:
        strategy = cases(capabilities=declared, features={"causal"}, layouts=("bshd",), **SMALL)

        def examine(case: Case) -> None:
            assert_close_to_math(case)
            stop_when_late()

    limit = [time.monotonic() + WARM_UP_S]

    def stop_when_late() -> None:
        if time.monotonic() >= limit[0]:
            raise LateError

    with contextlib.suppress(LateError):
        drawn(lane, strategy, examine)
    limit[0] = time.monotonic() + seconds
    started, number = time.process_time(), lane + 1000
    counted = [0]

    def count(case: Case) -> None:
        examine(case)
        counted[0] += 1

    try:
        while True:
            drawn(number, strategy, count)
            number += 1000
    except LateError:
        return counted[0], time.process_time() - started


class LateError(BaseException):
    """The time is over."""


def assert_close_to_math(case: Case) -> None:
    """The customary test: fp64 math attention of PyTorch, torch.testing.assert_close."""
    import torch

    problem = case.problem
    dtype = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[problem.dtype]
    generator = torch.Generator().manual_seed(case.seed)
    shapes = [(problem.batch, problem.nheads, length, problem.head_dim) for length in lengths(case)]
    exact = [torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype) for shape in shapes]
    results = []
    for kind in (dtype, torch.float64):
        q, k, v = (tensor.to(kind).requires_grad_() for tensor in exact[:3])
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=problem.softmax_scale)
        results.append((out, *torch.autograd.grad(out, (q, k, v), exact[3].to(kind))))
    tolerance = {"fp32": 1e-4, "fp16": 2e-2, "bf16": 1e-1}[problem.dtype]
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got.double(), expected, atol=tolerance, rtol=tolerance)


def lengths(case: Case) -> tuple[int, int, int, int]:
    """Lengths of q, k, v and dout; an empty sequence counts as one row."""
    rows, keys = max(1, case.problem.seqlen_q), max(1, case.problem.seqlen_k)
    return rows, keys, keys, rows


def _lane(arguments: tuple[str, str, float, int]) -> tuple[int, float]:
    contender, candidate, seconds, lane = arguments
    return measured(contender, candidate, seconds, lane)


@click.command()
@click.option("--candidate", default="torch_math", show_default=True)
@click.option("--seconds", default=10.0, show_default=True, help="Measured time of each line.")
@click.option("--jobs", default=2, show_default=True, help="Processes.")
def main(candidate: str, seconds: float, jobs: int) -> None:
    """Print examples a second."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    context = multiprocessing.get_context("spawn")
    print(f"{'contender':<14}{'processes':>10}{'examples':>10}{'per s':>8}{'CPU ms each':>13}")
    for contender in ("comparison", "campaign", "assert_close"):
        with context.Pool(jobs) as pool:
            parts = pool.map(_lane, [(contender, candidate, seconds, lane) for lane in range(jobs)])
        examples, cpu = sum(part[0] for part in parts), sum(part[1] for part in parts)
        print(f"{contender:<14}{jobs:>10}{examples:>10}{examples / seconds:>8.0f}{1e3 * cpu / examples:>13.2f}")


if __name__ == "__main__":
    main()
