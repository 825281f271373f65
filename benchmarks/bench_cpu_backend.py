"""CPU execution of the tiled kernel: compile time cold and cached, run time of the fast and the checked build.

Run: `python benchmarks/bench_cpu_backend.py`. A forward of 2 heads, seqlen 128, head_dim 64, fp16, on one core.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from kernels.cpu_backend import Build  # noqa: E402
from kernels.host_backend import HostBackend  # noqa: E402
from kernels.launch import forward  # noqa: E402
from kernels.registry import kernel_named  # noqa: E402

SHAPE = (1, 128, 2, 64)
REPEATS = 20


def _inputs() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal(SHAPE).astype(np.float16) for _ in range(3))
    return q, k, v


def run_ms(build: Build) -> tuple[float, float]:
    """(first call, median of the later ones) in milliseconds of process CPU time."""
    backend, kernel, arrays = HostBackend(build=build), kernel_named("cuda_tiled"), _inputs()
    started = time.perf_counter()
    forward(kernel, backend, *arrays)
    first = 1e3 * (time.perf_counter() - started)
    times = []
    for _ in range(REPEATS):
        started = time.process_time()
        forward(kernel, backend, *arrays)
        times.append(1e3 * (time.process_time() - started))
    if any(report.faults for report in backend.take_reports()):
        raise SystemExit("the kernel reported faults")
    return first, float(np.median(times))


def main() -> None:
    """Measure each build in a fresh process twice: with an empty cache, then with a full one."""
    if len(sys.argv) > 1:
        first, median = run_ms(Build(sys.argv[1]))
        print(f"{first:.1f} {median:.2f}")
        return
    print(f"{'build':<8}{'cold first call':>17}{'cached first call':>19}{'run (CPU)':>12}   [ms]")
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "ATTN_VERIFY_CACHE": cache}
        for build in (Build.FAST, Build.NOFMA, Build.CHECKED):
            command = [sys.executable, __file__, build.value]
            runs = [
                subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()
                for _ in range(2)
            ]
            print(f"{build.value:<8}{runs[0][0]:>17}{runs[1][0]:>19}{runs[1][1]:>12}")


if __name__ == "__main__":
    main()
