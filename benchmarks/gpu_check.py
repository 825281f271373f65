"""Runs the CUDA kernels on a GPU against the fp64 references and prints one line a case: worst error over bound, times.

    python -m benchmarks.gpu_check [--only TEXT] [--kernel NAME] [--runs N] [--cpu]

Exits with 1 if any output leaves its bound. Needs CuPy and an NVIDIA GPU. The bounds are the coarse ones of the kernel
tests; times are medians of CUDA-event timings, the arrays staying in L2 where they fit.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np

from kernels.backend import Backend
from kernels.dropout import dropout_keep_mask
from kernels.gpu_backend import GpuBackend
from kernels.host_backend import HostBackend
from kernels.kernel import Kernel
from kernels.launch import backward, dropout_mask, forward
from kernels.options import Options
from kernels.registry import KERNELS
from references.options import AttentionExtras, AttentionOptions
from references.varlen import attention_varlen, attention_varlen_backward
from tests.kernels.support import (
    DTYPES,
    UNIT_ROUNDOFF,
    bounds,
    expected_outputs,
    options_of,
    stored,
    widened,
)
from tests.references.problems import Problem, plain_problem


@dataclass(frozen=True, slots=True)
class Check:
    """One problem; `ragged` gives cumulative lengths, and then the batch axis of the problem has size 1."""

    name: str
    problem: Problem
    ragged: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    layout: str = "bshd"


def check(
    name: str,
    *sizes: int,
    extras: AttentionExtras | None = None,
    ragged: tuple[tuple[int, ...], tuple[int, ...]] | None = None,
    layout: str = "bshd",
    **options: Any,
) -> Check:
    """sizes = batch, seqlen_q, seqlen_k, nheads, nheads_kv, head_dim, head_dim_v."""
    batch, seqlen_q, seqlen_k, nheads, nheads_kv, head_dim, head_dim_v = sizes
    options.setdefault("softmax_scale", head_dim**-0.5)
    problem = plain_problem(
        len(name),
        batch=batch,
        seqlen_q=seqlen_q,
        seqlen_k=seqlen_k,
        nheads=nheads,
        nheads_kv=nheads_kv,
        head_dim=head_dim,
        head_dim_v=head_dim_v,
        options=AttentionOptions(**options),
        extras=extras or AttentionExtras(),
    )
    return Check(name, problem, ragged, layout)


def checks() -> Iterator[Check]:
    """Every feature once, tails, every head-dim bucket, and two lengths worth timing."""
    rng = np.random.Generator(np.random.PCG64(0))
    yield check("plain", 2, 128, 128, 4, 4, 64, 64)
    yield check("tails", 2, 77, 201, 3, 1, 40, 24)
    yield check("one_key", 1, 1, 1, 1, 1, 16, 16)
    yield check("no_keys", 1, 5, 0, 2, 2, 64, 64)
    yield check("causal", 2, 129, 257, 4, 2, 64, 64, causal=True)
    yield check("causal_top_left", 1, 200, 120, 2, 2, 64, 64, causal=True, alignment="top_left")
    yield check("causal_dead_rows", 1, 257, 100, 2, 1, 64, 64, causal=True)
    yield check("window", 1, 300, 300, 2, 2, 64, 64, window=(40, 9))
    mask = AttentionExtras(mask=rng.random((2, 1, 150, 170)) < 0.5)
    yield check("boolean_mask", 2, 150, 170, 2, 2, 64, 64, extras=mask)
    blocks = AttentionExtras(block_mask=rng.random((1, 2, 5, 5)) < 0.5, block_size=(64, 60))
    yield check("block_mask", 1, 300, 300, 2, 2, 64, 64, extras=blocks)
    full = AttentionExtras(bias=rng.standard_normal((1, 2, 130, 140)))
    yield check("bias", 3, 130, 140, 2, 1, 64, 64, extras=full)
    row = AttentionExtras(bias=rng.standard_normal((2, 1, 1, 140)))
    yield check("bias_broadcast", 2, 130, 140, 4, 2, 64, 64, extras=row)
    modifiers = AttentionExtras(alibi_slopes=2.0 ** -np.arange(1, 5), sink=rng.standard_normal(4))
    yield check("alibi_softcap_sink", 2, 130, 150, 4, 4, 64, 64, extras=modifiers, causal=True, softcap=8.0)
    dropped = AttentionExtras(dropout_keep=np.ones((2, 2, 130, 150), bool))
    yield check("dropout", 2, 130, 150, 2, 2, 64, 64, extras=dropped, dropout_p=0.3)
    lengths = AttentionExtras(seqlens_q=np.array([130, 0, 64]), seqlens_k=np.array([5, 90, 140]))
    yield check("lengths", 3, 130, 140, 2, 2, 64, 64, extras=lengths, causal=True)
    cuts = ((0, 70, 70, 200, 230), (0, 30, 140, 220, 230))
    yield check("ragged", 1, 230, 230, 4, 2, 64, 64, ragged=cuts, causal=True)
    yield check("heads_first", 2, 130, 140, 4, 2, 64, 64, layout="bhsd")
    for head_dim, head_dim_v in ((32, 32), (80, 80), (128, 128), (192, 128), (256, 256)):
        yield check(f"head_dim_{head_dim}_{head_dim_v}", 1, 150, 150, 2, 1, head_dim, head_dim_v, causal=True)
    yield check("n512", 2, 512, 512, 8, 8, 64, 64, causal=True)
    yield check("n2048", 1, 2048, 2048, 8, 8, 128, 128, causal=True)


OPTION_ARRAYS = (
    "keep_mask", "block_mask", "bias", "alibi_slopes", "sink",
    "seqlens_q", "seqlens_k", "cu_seqlens_q", "cu_seqlens_k",
)  # fmt: skip


class Gpu:
    """Moves arrays to the GPU and back, bf16 as its bits; works on a stream of its own."""

    def __init__(self) -> None:
        import cupy

        self.cupy = cupy
        self.backend: Backend = GpuBackend()
        self.stream = cupy.cuda.Stream(non_blocking=True)

    def put(self, array: Any) -> Any:
        """Same strides order on the device."""
        host = np.asarray(array)
        bits = host.view(np.uint16) if host.dtype == ml_dtypes.bfloat16 else host
        return self.cupy.asarray(np.ascontiguousarray(bits))

    def get(self, array: Any) -> Any:
        host = self.cupy.asnumpy(array)
        return host.view(ml_dtypes.bfloat16) if host.dtype == np.uint16 else host

    def median_ms(self, run: Callable[[], Any], runs: int) -> float:
        """Median of `runs` event timings after two warm-up calls."""
        times = []
        for _ in range(runs + 2):
            start, stop = self.cupy.cuda.Event(), self.cupy.cuda.Event()
            start.record()
            run()
            stop.record()
            stop.synchronize()
            times.append(float(self.cupy.cuda.get_elapsed_time(start, stop)))
        return statistics.median(times[2:])


class Cpu:
    """The CPU backend in the GPU's place: shows that this script works, without a GPU."""

    def __init__(self) -> None:
        self.backend: Backend = HostBackend()
        self.stream = contextlib.nullcontext()

    def put(self, array: Any) -> Any:
        return np.ascontiguousarray(array)

    def get(self, array: Any) -> Any:
        return array

    def median_ms(self, run: Callable[[], Any], runs: int) -> float:
        times = []
        for _ in range(runs):
            start = time.perf_counter()
            run()
            times.append((time.perf_counter() - start) * 1e3)
        return statistics.median(times)


Device = Gpu | Cpu


def put_tensor(device: Device, array: Any, layout: str) -> Any:
    """On the device, in the memory order of the layout."""
    if layout == "bhsd":
        return device.put(array.swapaxes(1, 2)).swapaxes(1, 2)
    return device.put(array)


def put_options(device: Device, options: Options) -> Options:
    arrays = {name: getattr(options, name) for name in OPTION_ARRAYS}
    return replace(options, **{name: device.put(array) for name, array in arrays.items() if array is not None})


def expected_of(item: Check, problem: Problem) -> dict[str, Any]:
    """The fp64 reference; a ragged problem loses its batch axis."""
    if item.ragged is None:
        return expected_outputs(problem)
    wide, (cu_q, cu_k) = widened(problem), (np.array(cut) for cut in item.ragged)
    q, k, v, dout = (array[0] for array in (*wide.operands, wide.dout))
    result = attention_varlen(q, k, v, options=problem.options, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k)
    grads = attention_varlen_backward(
        q, k, v, dout, options=problem.options, dlse=wide.dlse[0], cu_seqlens_q=cu_q, cu_seqlens_k=cu_k
    )
    return {"out": result.out, "lse": result.lse, "dq": grads.dq, "dk": grads.dk, "dv": grads.dv}


def run_on(
    device: Device, kernel: Kernel, item: Check, problem: Problem, runs: int
) -> tuple[dict[str, Any], float, float]:
    """(outputs on the host, forward ms, backward ms)."""
    options = options_of(problem)
    arrays = [*problem.operands, problem.dout, problem.dlse]
    if item.ragged is not None:
        cu_q, cu_k = (np.array(cut, np.int32) for cut in item.ragged)
        longest_q, longest_k = (int(np.diff(cut).max()) for cut in (cu_q, cu_k))
        options = replace(options, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, max_seqlen_q=longest_q, max_seqlen_k=longest_k)
        arrays = [array[0] for array in arrays]
    with device.stream:
        q, k, v, dout = (put_tensor(device, array, item.layout) for array in arrays[:4])
        dlse, options = device.put(arrays[4]), put_options(device, options)

        def run_forward() -> tuple[Any, Any]:
            return forward(kernel, device.backend, q, k, v, options=options)

        out, lse = run_forward()

        def run_backward() -> dict[str, Any]:
            return backward(kernel, device.backend, q, k, v, out, lse, dout, options=options, dlse=dlse)

        grads = run_backward()
        host = {name: device.get(array) for name, array in {"out": out, "lse": lse, **grads}.items()}
        return host, device.median_ms(run_forward, runs), device.median_ms(run_backward, runs)


def worst(got: dict[str, Any], expected: dict[str, Any], problem: Problem, dtype: str) -> tuple[float, str, float]:
    """(largest error over bound, tensor, its largest absolute error); infinity if non-finite numbers differ."""
    limit = bounds(problem, dtype)
    found = [(0.0, "out", 0.0)]
    for name, reference in expected.items():
        actual = got[name].astype(np.float64)
        finite = np.isfinite(reference)
        if actual.shape != reference.shape or not np.array_equal(actual[~finite], reference[~finite], equal_nan=True):
            return np.inf, name, np.inf
        rounding = UNIT_ROUNDOFF["fp32" if name == "lse" else dtype]
        error = np.abs(actual[finite] - reference[finite])
        allowed = limit[name] + 1.01 * rounding * np.abs(reference[finite]) + 2.0**-24
        if error.size:
            # A NaN in `got` makes the ratio NaN, which max would pass over.
            ratio = float(np.nan_to_num(error / allowed, nan=np.inf).max())
            found.append((ratio, name, float(np.nan_to_num(error, nan=np.inf).max())))
    return max(found)


def check_dropout_bits(device: Device) -> bool:
    """Whether the mask drawn on the GPU is NumPy's."""
    shape = (2, 3, 65, 130)
    drawn = device.get(dropout_mask(device.backend, 0.37, shape, seed=2**40 + 17, offset=5))
    same = bool(np.array_equal(drawn.astype(bool), dropout_keep_mask(0.37, shape, seed=2**40 + 17, offset=5)))
    print(f"dropout mask bits: {'same as NumPy' if same else 'DIFFER from NumPy'}", flush=True)
    return same


def run_case(
    device: Device, item: Check, kernel: Kernel, dtype: str, problem: Problem, expected: dict[str, Any], runs: int
) -> bool:
    """Print one line; whether everything stayed inside its bound."""
    label = f"{item.name:20} {kernel.name:14} {dtype}"
    try:
        got, forward_ms, backward_ms = run_on(device, kernel, item, problem, runs)
    except (RuntimeError, ValueError) as error:
        print(f"{label}  FAILED  {type(error).__name__}: {error}", flush=True)
        traceback.print_exc(limit=4)
        return False
    ratio, tensor, error_abs = worst(got, expected, problem, dtype)
    verdict = "ok   " if ratio <= 1 else "WRONG"
    figures = f"{ratio:8.3f} {tensor:5} {error_abs:9.2e} {forward_ms:9.3f} {backward_ms:9.3f}"
    print(f"{label}  {verdict} {figures}", flush=True)
    return ratio <= 1


def run_item(device: Device, item: Check, kernels: list[Kernel], runs: int) -> bool:
    """One problem in every storage type on every kernel; the reference is computed once a type."""
    ok = True
    for dtype in DTYPES:
        problem = stored(item.problem, dtype)
        expected = expected_of(item, problem)
        for kernel in kernels:
            ok &= run_case(device, item, kernel, dtype, problem, expected, runs)
    return ok


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default="", help="run the cases whose name contains this text")
    parser.add_argument("--kernel", default="", help="run the kernels whose name contains this text")
    parser.add_argument("--runs", type=int, default=5, help="timed runs a direction")
    parser.add_argument("--cpu", action="store_true", help="the CPU backend instead of a GPU: a trial of this script")
    asked = parser.parse_args()
    device: Device = Cpu() if asked.cpu else Gpu()
    kernels = [kernel for kernel in KERNELS.values() if asked.kernel in kernel.name]
    items = [item for item in checks() if asked.only in item.name]
    if not (kernels and items):
        parser.error(f"nothing matches --only {asked.only!r} --kernel {asked.kernel!r}")
    print(f"{device.backend.name} {device.backend.arch}")
    print(f"{'case':20} {'kernel':14} dtype verdict err/bound worst abs error  fwd ms    bwd ms")
    results = [check_dropout_bits(device), *(run_item(device, item, kernels, asked.runs) for item in items)]
    print("all inside their bounds" if all(results) else "SOMETHING IS WRONG")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
