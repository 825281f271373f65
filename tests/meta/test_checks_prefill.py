"""Prefill and guard bands: outputs left unwritten, added to or overrun are found; honest kernels pass."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.meta.running import case_of, finding_of
from verify import register
from verify.candidates import load
from verify.candidates.output_buffers import GUARD_BYTES, OutputBuffers
from verify.candidates.user.function import FunctionCandidate
from verify.registration import declaration_of
from verify.verdict import Status

NAME = "prefill"
Fill = Callable[[np.ndarray, np.ndarray], None]
"""(buffer, right values): how out is stored."""


def filling(store: Fill, arrays: str = "numpy") -> FunctionCandidate:
    """A function that fills the buffer it is given by `store`."""

    def attention(q: Any, k: Any, v: Any, softmax_scale: float, out: Any) -> None:
        right = np.empty(out.shape, np.float32)
        for head in np.ndindex(q.shape[0], q.shape[2]):
            place = (head[0], slice(None), head[1])
            scores = np.asarray(q[place]) @ np.asarray(k[place]).T * np.float32(softmax_scale)
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            right[place] = weights / weights.sum(axis=1, keepdims=True) @ np.asarray(v[place])
        store(np.asarray(out), right)

    register(arrays=arrays, arithmetic="eager")(attention)
    return FunctionCandidate(declaration_of(attention))


def whole(out: np.ndarray, right: np.ndarray) -> None:
    out[...] = right


def all_but_the_last_row(out: np.ndarray, right: np.ndarray) -> None:
    out[:, :-1] = right[:, :-1]


def added_where_finite(out: np.ndarray, right: np.ndarray) -> None:
    """Right over NaN, wrong over what else was there: an accumulator that nobody cleared."""
    out[...] = np.where(np.isnan(out), 0, out) + right


def beyond_the_end(out: np.ndarray, right: np.ndarray) -> None:
    out[...] = right
    np.lib.stride_tricks.as_strided(out.reshape(-1), (out.size + 2,))[-1] = 0


def before_the_start(out: np.ndarray, right: np.ndarray) -> None:
    out[...] = right
    memory: Any = out
    while isinstance(memory.base, np.ndarray):
        memory = memory.base
    memory[GUARD_BYTES - 3] = 0


@pytest.mark.parametrize("arrays", ["numpy", "torch"])
def test_a_function_that_writes_everything_passes(arrays: str) -> None:
    finding = finding_of(NAME, filling(whole, arrays), case_of())
    assert (finding.status, finding.reasons) == (Status.PASS, ())


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_the_projects_kernel_passes(dtype: str) -> None:
    assert finding_of(NAME, "cuda_tiled", case_of(dtype=dtype, causal=True)).status is Status.PASS


@pytest.mark.parametrize("store", [all_but_the_last_row, added_where_finite])
def test_outputs_that_show_what_was_there_are_rejected(store: Fill) -> None:
    finding = finding_of(NAME, filling(store), case_of())
    assert finding.status is Status.UNWRITTEN
    assert finding.reasons[0].startswith("out: other bits when it starts as finite numbers")


@pytest.mark.parametrize(("store", "where"), [(beyond_the_end, "beyond out"), (before_the_start, "before out")])
@pytest.mark.parametrize("check", [NAME, "forward"])
def test_writes_into_a_guard_band_are_rejected(check: str, store: Fill, where: str) -> None:
    finding = finding_of(check, filling(store), case_of())
    assert finding.status is Status.OUT_OF_BOUNDS
    assert where in finding.reasons[0]


def test_what_makes_its_own_outputs_is_not_judged() -> None:
    assert finding_of(NAME, "numpy_tiled", case_of()).status is Status.UNSUPPORTED


@pytest.mark.parametrize(("prefill", "value"), [("nan", np.nan), ("finite", 13323083.0)])
def test_buffers_hold_what_is_asked_for(prefill: str, value: float) -> None:
    buffers = OutputBuffers(lambda nbytes: np.empty(nbytes, np.uint8), np.asarray, prefill)
    np.testing.assert_array_equal(buffers.make("out", 8).view(np.float32), np.float32(value))
    buffers.check()


def test_a_described_cuda_source_passes(tmp_path: Path) -> None:
    template = Path(__file__).parents[2] / "verify" / "templates" / "cuda_kernel.py.txt"
    kernel = tmp_path / "kernel.py"
    kernel.write_text(template.read_text())
    assert finding_of(NAME, load(f"{kernel}::attention"), case_of()).status is Status.PASS
