"""The same cases through the CPU backend and on a GPU: distribution of their difference in units of the bound.

Run on a machine with a GPU and a C++ compiler: `python benchmarks/cpu_gpu_difference.py [--kernel cuda_tiled]`.
Exits 1 if any difference exceeds the sum of both bounds (each side may be off by its own).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from verify.candidate import Call, Candidate
from verify.candidates.cuda import DEVICE_VARIABLE, build
from verify.case import Case
from verify.grid import profile_cases
from verify.inputs import make_inputs
from verify.oracle import reference_outputs
from verify.tolerance import derive_bounds

KERNELS = ("cuda_textbook", "cuda_tiled")
Ratios = dict[tuple[str, str], list[np.ndarray]]


def outputs_of(candidate: Candidate, call: Call, device: str) -> dict[str, np.ndarray]:
    """Outputs of one call on `cpu` or `gpu`; the candidate picks its machine at its first call."""
    os.environ[DEVICE_VARIABLE] = device
    return dict(candidate.run(call).outputs)


def compare(case: Case, on_cpu: Candidate, on_gpu: Candidate, ratios: Ratios) -> float:
    """Add |cpu - gpu| / bound of every finite element; return the largest."""
    inputs = make_inputs(case)
    call = Call(problem=case.problem, arrays=inputs.arrays, backward=True, seed=case.seed)
    cpu, gpu = outputs_of(on_cpu, call, "cpu"), outputs_of(on_gpu, call, "gpu")
    arrays = {**inputs.arrays, **({"dropout_keep": cpu["dropout_keep"]} if "dropout_keep" in cpu else {})}
    reference = reference_outputs(case.problem, arrays, backward=True).outputs
    arithmetic = on_cpu.contract.arithmetic[case.problem.dtype]
    bounds = derive_bounds(case.problem, arrays, reference, arithmetic, backward=True)
    largest = 0.0
    for name, bound in bounds.items():
        a, b = cpu[name].astype(np.float64), gpu[name].astype(np.float64)
        finite = np.isfinite(a) & np.isfinite(b) & np.isfinite(bound.total)
        if not np.array_equal(np.isfinite(a), np.isfinite(b)):
            return np.inf
        difference = np.abs(a - b)[finite]
        scale = bound.total[finite]
        ratio = np.where(difference == 0, 0.0, difference / np.where(scale > 0, scale, np.finfo(float).tiny))
        ratios[(case.problem.dtype, name)].append(ratio)
        largest = max(largest, float(ratio.max(initial=0.0)))
    return largest


def main() -> int:
    """Print a table for each kernel."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", default="quick")
    parser.add_argument("--kernel", action="append", choices=KERNELS)
    options = parser.parse_args()
    failures = 0
    for kernel in options.kernel or KERNELS:
        on_cpu, on_gpu = build(kernel), build(kernel)
        ratios: Ratios = defaultdict(list)
        judged = 0
        for case in profile_cases(options.profile, seed=0):
            if on_cpu.contract.capabilities.refusal(case.problem) is None:
                judged += 1
                if not compare(case, on_cpu, on_gpu, ratios) <= 2.0:
                    failures += 1
                    print(f"{kernel}: beyond both bounds: {case.case_id}")
        print(f"\n{kernel}: {judged} cases, |CPU - GPU| / bound")
        print(f"{'dtype':<7}{'output':<8}{'elements':>10}{'equal':>8}{'median':>10}{'p99':>10}{'max':>10}")
        for (dtype, name), parts in sorted(ratios.items()):
            values = np.concatenate(parts)
            quantiles = np.quantile(values, (0.5, 0.99, 1.0))
            print(
                f"{dtype:<7}{name:<8}{values.size:>10}{np.mean(values == 0):>8.1%}"
                + "".join(f"{value:>10.2g}" for value in quantiles)
            )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
