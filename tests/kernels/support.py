"""Runs a kernel on a reference problem and bounds how far fp32 arithmetic may take it from fp64.

The bound is a coarse one for sanity (worst case over whole tensors); the sharp one belongs to `verify`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np

from kernels.dropout import dropout_keep_mask
from kernels.host_backend import HostBackend
from kernels.kernel import Kernel, Tile
from kernels.launch import backward, forward
from kernels.options import Options
from kernels.registry import TEXTBOOK, TILED
from references.attention import attention
from references.attention_backward import attention_backward
from tests.references.problems import Problem

KERNELS = [TEXTBOOK, TILED]
DTYPES = {"fp32": np.float32, "fp16": np.float16, "bf16": ml_dtypes.bfloat16}
UNIT_ROUNDOFF = {"fp32": 2.0**-24, "fp16": 2.0**-11, "bf16": 2.0**-8}
SEED, OFFSET = 0x1234_5678_9ABC_DEF0, 7

SMALL_TILE = Tile(q=16, k=16, threads=128)
"""Several tiles fit into a short sequence."""


def small_tile(kernel: Kernel) -> Tile | None:
    """SMALL_TILE for kernels that have tiles."""
    return SMALL_TILE if kernel is TILED else None


def stored(problem: Problem, dtype: str) -> Problem:
    """The problem with operands, bias and sink rounded to the storage dtype, dlse and slopes to fp32."""
    kind = DTYPES[dtype]
    extras = problem.extras
    narrow: dict[str, Any] = {
        name: np.asarray(getattr(extras, name), kind) for name in ("bias", "sink") if getattr(extras, name) is not None
    }
    if extras.mask is not None:
        narrow["mask"] = np.asarray(extras.mask)
    if extras.alibi_slopes is not None:
        narrow["alibi_slopes"] = extras.alibi_slopes.astype(np.float32)
    for name in ("seqlens_q", "seqlens_k"):
        if getattr(extras, name) is not None:
            narrow[name] = getattr(extras, name).astype(np.int32)
    if extras.dropout_keep is not None:
        shape = (problem.q.shape[0], problem.q.shape[2], problem.q.shape[1], problem.k.shape[1])
        narrow["dropout_keep"] = dropout_keep_mask(problem.options.dropout_p, shape, seed=SEED, offset=OFFSET)
    operands = {name: getattr(problem, name).astype(kind) for name in ("q", "k", "v", "dout")}
    return replace(problem, **operands, dlse=problem.dlse.astype(np.float32), extras=replace(extras, **narrow))


def options_of(problem: Problem) -> Options:
    """The launcher's options for a stored problem."""
    asked, extras = problem.options, problem.extras
    return Options(
        softmax_scale=asked.softmax_scale,
        causal=asked.causal,
        alignment=asked.alignment,
        window=asked.window or (None, None),
        softcap=asked.softcap,
        keep_mask=extras.mask,
        block_mask=extras.block_mask,
        block_size=extras.block_size,
        bias=extras.bias,
        alibi_slopes=extras.alibi_slopes,
        sink=extras.sink,
        dropout_p=asked.dropout_p,
        dropout_seed=SEED,
        dropout_offset=OFFSET,
        seqlens_q=extras.seqlens_q,
        seqlens_k=extras.seqlens_k,
    )


def run(kernel: Kernel, backend: HostBackend, problem: Problem, tile: Tile | None = None) -> dict[str, Any]:
    """All outputs of forward and backward of a stored problem; a fault of the CPU backend fails the test."""
    options = options_of(problem)
    out, lse = forward(kernel, backend, *problem.operands, options=options, tile=tile)
    grads = backward(
        kernel, backend, *problem.operands, out, lse, problem.dout, options=options, dlse=problem.dlse, tile=tile
    )
    assert_no_faults(backend)
    return {"out": out, "lse": lse, **grads}


def assert_no_faults(backend: HostBackend) -> None:
    faults = [str(fault) for report in backend.take_reports() for fault in report.faults]
    assert not faults, "\n".join(faults[:5])


def expected_outputs(problem: Problem) -> dict[str, Any]:
    """The fp64 reference of a stored problem."""
    wide = widened(problem)
    result = attention(*wide.operands, **wide.asked)
    grads = attention_backward(*wide.operands, wide.dout, **wide.asked, dlse=wide.dlse)
    found = {"out": result.out, "lse": result.lse, "dq": grads.dq, "dk": grads.dk, "dv": grads.dv}
    optional = {"dbias": grads.dbias, "dsink": grads.dsink}
    return found | {name: array for name, array in optional.items() if array is not None}


def widened(problem: Problem) -> Problem:
    """The same numbers in fp64."""
    names = ("q", "k", "v", "dout", "dlse")
    wide = {name: getattr(problem, name).astype(np.float64) for name in names}
    extras = {
        name: array.astype(np.float64)
        for name in ("bias", "sink", "alibi_slopes")
        if (array := getattr(problem.extras, name)) is not None
    }
    return replace(problem, **wide, extras=replace(problem.extras, **extras))


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Largest magnitudes of a problem."""

    logit: float
    """Sum of the magnitudes that make up a logit."""
    dprob: float
    """sum_c |dO_ic| |V_jc|, dropout included."""
    q: float
    k: float
    v: float
    dout: float
    dlse: float


def _largest(array: Any) -> float:
    array = np.asarray(array, np.float64)
    return float(np.abs(array[np.isfinite(array)]).max(initial=0.0))


def _sizes(problem: Problem) -> _Sizes:
    wide, options, extras = widened(problem), problem.options, problem.extras
    distance = wide.q.shape[1] + wide.k.shape[1]
    logit = abs(options.softmax_scale) * _largest_product(wide.q, wide.k)
    for array, factor in ((extras.bias, 1), (extras.sink, 1), (extras.alibi_slopes, distance)):
        logit += 0.0 if array is None else factor * _largest(array)
    kept = 1.0 / (1.0 - options.dropout_p)
    q, k, v, dout, dlse = (_largest(array) for array in (wide.q, wide.k, wide.v, wide.dout, wide.dlse))
    return _Sizes(logit, kept * _largest_product(wide.dout, wide.v), q, k, v * kept, dout * kept, dlse)


def _largest_product(rows: Any, keys: Any) -> float:
    """max over all pairs of sum_c |rows_ic| |keys_jc|, each query head with its key head."""
    keys = np.repeat(keys, rows.shape[2] // keys.shape[2], axis=2)
    return _largest(np.einsum("bihc,bjhc->bhij", np.abs(rows), np.abs(keys)))


def bounds(problem: Problem, dtype: str) -> dict[str, float]:
    """Largest error of each output, before its own rounding to storage.

    A logit is a sum of head_dim products and five more operations: its error is (head_dim + 5) u times the magnitudes
    in it, and that is the relative error of exp. Sums over n terms add n u. With e the sum of both,
    |out| <= max|V| moves by 2 e max|V| (numerator and denominator), dS = P (dP - delta + dlse) by 4 e (2 dP + dlse) and
    by the rounding of `out` in delta; a gradient sums that over its terms, sum_j P_ij <= 1.
    """
    s = _sizes(problem)
    seqlen_q, nheads, head_dim = problem.q.shape[1:]
    seqlen_k, nheads_kv = problem.k.shape[1:3]
    terms = seqlen_q * nheads // nheads_kv + seqlen_k + problem.v.shape[-1]
    e = 2.0**-24 * ((head_dim + 5) * (1 + s.logit) + terms + 10)
    score = 4 * e * (2 * s.dprob + s.dlse) + UNIT_ROUNDOFF[dtype] * s.dprob
    scale, rows = abs(problem.options.softmax_scale), seqlen_q * nheads / nheads_kv
    pairs = problem.q.shape[0] * nheads * seqlen_q
    return {
        "out": 2 * e * s.v,
        "lse": 2 * e * (1 + s.logit),
        "dq": scale * s.k * score,
        "dk": scale * s.q * rows * score,
        "dv": 2 * e * rows * s.dout,
        "dbias": pairs * score,
        "dsink": pairs * score,
    }


def assert_agrees(got: dict[str, Any], problem: Problem, dtype: str) -> None:
    """Every output within its bound plus one rounding to its own dtype, infinities and NaNs in the same places."""
    expected, limit = expected_outputs(problem), bounds(problem, dtype)
    assert set(got) == set(expected)
    for name, reference in expected.items():
        rounding = UNIT_ROUNDOFF["fp32" if name == "lse" else dtype]
        found = got[name].astype(np.float64)
        assert found.shape == reference.shape, f"{name}: shape {found.shape}, expected {reference.shape}"
        finite = np.isfinite(reference)
        np.testing.assert_array_equal(found[~finite], reference[~finite], err_msg=name)
        error = np.abs(found[finite] - reference[finite])
        ok = error <= limit[name] + 1.01 * rounding * np.abs(reference[finite]) + 2.0**-24
        assert ok.all(), (
            f"{name}: error {error.max():.3g}, bound {limit[name]:.3g}, of {np.abs(reference[finite]).max():.3g}"
        )
