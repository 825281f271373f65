"""What the stream checks must say of honest candidates and of impostors on a GPU, and how one of them is asked."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.gpu import stream_impostors as impostors
from tests.meta.running import case_of, finding_of
from verify.candidate import Candidate
from verify.candidates import load
from verify.verdict import Finding, Status

PASS, RACE = (Status.PASS,), (Status.RACE,)
SHAPE = {"batch": 2, "seqlen_q": 128, "seqlen_k": 128, "nheads": 2, "head_dim": 64}
Build = Callable[[], Candidate]


def of(function: Callable[..., Any]) -> tuple[Build, str]:
    """A registered function as a candidate on fp32."""
    return (lambda: impostors.function_candidate(function)), "fp32"


FILLING: Mapping[Callable[..., Any], tuple[Status, ...]] = {
    impostors.torch_filling: PASS,
    impostors.cupy_filling: PASS,
    impostors.torch_filling_partly: (Status.UNWRITTEN,),
    impostors.torch_overrunning: (Status.OUT_OF_BOUNDS,),
}
"""Functions that fill the buffer they are given -> what the prefill check says."""

HONEST: Mapping[str, tuple[Build, str]] = {
    **{
        name: (lambda name=name: load(name), dtype)
        for name, dtype in {
            "torch_cuda_flash": "bf16",
            "torch_cuda_efficient": "bf16",
            "torch_cuda_cudnn": "bf16",
            "torch_cuda_math": "fp32",
            "triton_attention": "bf16",
            "cuda_textbook": "fp32",
            "cuda_tiled": "fp32",
        }.items()
    },
    **{
        function.__name__: of(function)
        for function in (impostors.torch_honest, impostors.torch_honest_side_stream, impostors.cupy_honest)
    },
}
"""Name -> how it is made, and the dtype of its case."""

MISPLACED: Mapping[str, tuple[Build, str]] = {
    **{
        function.__name__: of(function)
        for function in (
            impostors.torch_on_default_stream,
            impostors.torch_on_own_stream,
            impostors.torch_backward_on_default_stream,
            impostors.cupy_on_null_stream,
        )
    },
    "torch_cuda_flash misplaced": (lambda: impostors.torch_misplaced("torch_cuda_flash"), "bf16"),
    "triton_attention misplaced": (lambda: impostors.torch_misplaced("triton_attention"), "bf16"),
    "cuda_tiled misplaced": (lambda: impostors.MisplacedKernel("cuda_tiled"), "fp32"),
}

DEFERRED: Mapping[str, tuple[Build, str]] = {
    function.__name__: of(function)
    for function in (impostors.torch_deferred, impostors.torch_in_thread, impostors.cupy_deferred)
}


def cuda_source() -> Candidate:
    """The template of a described CUDA source."""
    source = Path(__file__).parents[2] / "verify" / "templates" / "cuda_kernel.py.txt"
    folder = Path(tempfile.mkdtemp())
    (folder / "described.py").write_text(source.read_text())
    return load(f"{folder / 'described.py'}::attention")


EXPECTATIONS: tuple[tuple[str, Build, str, str, tuple[Status, ...]], ...] = (
    *((name, *made, check, PASS) for name, made in HONEST.items() for check in ("streams", "deferred")),
    *((name, *made, "streams", RACE) for name, made in MISPLACED.items()),
    *((name, *made, check, RACE) for name, made in DEFERRED.items() for check in ("streams", "deferred")),
    *(("cuda_source", cuda_source, "fp32", check, PASS) for check in ("streams", "deferred", "prefill")),
    *((name, *HONEST[name], "prefill", PASS) for name in ("cuda_textbook", "cuda_tiled")),
    *((function.__name__, *of(function), "prefill", right) for function, right in FILLING.items()),
    *((name, *HONEST[name], "split_merge", PASS) for name in ("torch_cuda_flash", "triton_attention", "cuda_tiled")),
)
"""(name, how it is made, dtype, check, statuses that are right)."""


def finding_on_gpu(build: Build, dtype: str, check: str) -> Finding | str:
    """What the check says, or why the candidate cannot run here."""
    candidate = build()
    missing = candidate.unavailable()
    fields: dict[str, Any] = dict(SHAPE)
    return missing if missing is not None else finding_of(check, candidate, case_of(dtype=dtype, **fields))
