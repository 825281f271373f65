"""Speed and memory of the fp64 reference beside PyTorch's fp64 math attention on the CPU: same work, same run.

    python benchmarks/bench_reference.py [--case NAME] [--rounds N]

Every measurement is a process of its own, one thread, both sides in turn; times are medians over the rounds, memory is
the peak resident set less what the imports take. Norms of the results are compared, so a fast wrong answer shows.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

GIB = 2**30
MEMORY_LIMIT_GIB = 2.0
"""What the longest case may take, forward and backward, imports included."""
AGREEMENT = 1e-12


@dataclass(frozen=True, slots=True)
class BenchCase:
    """One size; `calls` are timed together and divided out."""

    batch: int
    seqlen: int
    nheads: int
    head_dim: int
    causal: bool
    calls: int


CASES = {
    "small": BenchCase(2, 65, 4, 72, True, 50),
    "middle": BenchCase(2, 512, 8, 64, True, 2),
    "heads": BenchCase(1, 2048, 8, 128, False, 1),
    "long": BenchCase(1, 8192, 1, 64, False, 1),
    "longest": BenchCase(1, 16384, 1, 64, False, 1),
}

TOO_LARGE_FOR_TORCH = {"longest"}
"""Math attention would keep several matrices of 2 GiB; the reference is measured alone against its limit."""


def operands(case: BenchCase) -> list[Any]:
    """q, k, v, dout in float32, (batch, seqlen, nheads, head_dim)."""
    rng = np.random.Generator(np.random.PCG64(0))
    return [rng.standard_normal((case.batch, case.seqlen, case.nheads, case.head_dim), np.float32) for _ in range(4)]


def reference_work(case: BenchCase) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Forward, and forward with backward."""
    from references.attention import attention
    from references.attention_backward import attention_with_gradients
    from references.options import AttentionOptions

    q, k, v, dout = operands(case)
    options = AttentionOptions(softmax_scale=case.head_dim**-0.5, causal=case.causal)

    def forward() -> list[Any]:
        return [attention(q, k, v, options=options).out]

    def both() -> list[Any]:
        result, grads = attention_with_gradients(q, k, v, dout, options=options)
        return [result.out, grads.dq, grads.dk, grads.dv]

    return forward, both


def torch_work(case: BenchCase) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Forward, and forward with backward; widened to fp64 inside, as the reference does."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    torch.set_num_threads(1)
    narrow = [torch.from_numpy(x).transpose(1, 2) for x in operands(case)]

    def run(backward: bool) -> list[Any]:
        q, k, v, dout = (x.to(torch.float64) for x in narrow)
        leaves = [x.requires_grad_(backward) for x in (q, k, v)]
        with sdpa_kernel(SDPBackend.MATH):
            out = scaled_dot_product_attention(leaves[0], leaves[1], leaves[2], is_causal=case.causal)
            grads = torch.autograd.grad(out, leaves, dout) if backward else ()
        return [out.detach().numpy(), *(x.numpy() for x in grads)]

    return (lambda: run(False)), (lambda: run(True))


WORK = {"reference": reference_work, "torch": torch_work}


def measure(side: str, name: str) -> dict[str, Any]:
    """Runs in the child: seconds a call, peak memory, norms."""
    case = CASES[name]
    if side == "torch":
        # Autograd's first use imports half of torch; that is neither work nor memory of the case.
        warm_up = torch_work(BenchCase(1, 2, 1, 2, True, 1))[1]
        warm_up()
    forward, both = WORK[side](case)
    imports_bytes = peak_bytes()
    seconds = {}
    for label, work in (("forward", forward), ("both", both)):
        start = time.perf_counter()
        for _ in range(case.calls):
            result = work()
        seconds[label] = (time.perf_counter() - start) / case.calls
    norms = [float(np.linalg.norm(x)) for x in result]
    return {"seconds": seconds, "imports_bytes": imports_bytes, "peak_bytes": peak_bytes(), "norms": norms}


def peak_bytes() -> int:
    """Peak resident set of this process; Linux counts it in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def in_child(side: str, name: str) -> dict[str, Any]:
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--child", side, "--case", name]
    done = subprocess.run(command, env=os.environ | one_thread, check=True, capture_output=True, text=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def summary(runs: list[dict[str, Any]]) -> tuple[float, float, float]:
    """Median seconds of forward and of both, and the largest memory above the imports in GiB."""
    forward, both = (statistics.median(run["seconds"][label] for run in runs) for label in ("forward", "both"))
    return forward, both, max(run["peak_bytes"] - run["imports_bytes"] for run in runs) / GIB


def report(name: str, rounds: int) -> bool:
    """Print one case; False if results disagree or memory is over its limit."""
    sides = ["reference"] if name in TOO_LARGE_FOR_TORCH else ["reference", "torch"]
    runs: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    for _ in range(rounds):
        for side in sides:
            runs[side].append(in_child(side, name))
    print(f"{name}: {CASES[name]}")
    for side in sides:
        forward, both, memory = summary(runs[side])
        print(f"  {side:<10} forward {forward:.6f} s   forward+backward {both:.6f} s   memory {memory:.3f} GiB")
    if len(sides) == 1:
        peak = max(run["peak_bytes"] for run in runs["reference"]) / GIB
        print(f"  peak resident set {peak:.3f} GiB, limit {MEMORY_LIMIT_GIB} GiB")
        return bool(peak <= MEMORY_LIMIT_GIB)
    ratios = [ours / theirs for ours, theirs in zip(summary(runs["reference"]), summary(runs["torch"]), strict=True)]
    gap = max(abs(a / b - 1) for a, b in zip(runs["reference"][0]["norms"], runs["torch"][0]["norms"], strict=True))
    print(f"  reference / torch: forward {ratios[0]:.2f}   both {ratios[1]:.2f}   memory {ratios[2]:.2f}", end="")
    print(f"   norms differ by {gap:.1e}")
    return bool(gap <= AGREEMENT)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=CASES, help="one case instead of all")
    parser.add_argument("--rounds", type=int, default=3, help="processes a side (default 3, for a median)")
    parser.add_argument("--child", choices=WORK, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        print(json.dumps(measure(asked.child, asked.case)))
        return 0
    names = [asked.case] if asked.case else list(CASES)
    # A list, so that one failure does not hide the cases after it.
    passed = [report(name, asked.rounds) for name in names]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
