"""This project's CUDA kernels as candidates: on the CPU backend by default, on a GPU where there is one.

Variants choose how the CPU backend builds and schedules: `cuda_tiled:checked`, `:nofma`, `:reversed`, `:random<seed>`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from kernels import kernel as kernel_facts
from kernels.backend import Backend
from kernels.dropout import dropout_keep_mask
from kernels.launch import backward, forward
from kernels.options import Options
from kernels.registry import kernel_named
from verify.candidate import Call, KernelFaultError, Reply, Route
from verify.candidates.device_streams import StreamDevice, run_probed
from verify.candidates.guarded_backend import GuardedBackend
from verify.candidates.output_buffers import PREFILL_DETAIL
from verify.contract import Arithmetic, Capabilities, Contract
from verify.errors import require
from verify.problem import EVERY_LAYOUT, LAYOUTS
from verify.verdict import Status

Array = NDArray[Any]
DEVICE_VARIABLE = "ATTN_VERIFY_DEVICE"

FAULT_STATUSES: Mapping[str, Status] = {
    "OUT_OF_BOUNDS": Status.OUT_OF_BOUNDS,
    "READ_ONLY_WRITE": Status.OUT_OF_BOUNDS,
    "UNINITIALISED": Status.UNWRITTEN,
}
"""Kind of a fault of the CPU backend -> status; the others are races or broken synchronisation."""
HANGING = ("BARRIER_DIVERGENCE", "WARP_DIVERGENCE", "DEADLOCK", "TIMEOUT")


class Machine(Protocol):
    """Where a kernel runs: moves the arrays of a call there and back."""

    @property
    def backend(self) -> Backend:
        """Compiles and launches."""

    def place(self, arrays: Mapping[str, Array]) -> dict[str, Any]:
        """The arrays on the machine, with their strides."""

    def fetch(self, array: Any) -> Array:
        """An output as NumPy array of the right dtype."""

    def faults(self) -> Sequence[tuple[Status, str]]:
        """Faults seen since the last call, worst first."""

    def details(self) -> dict[str, str]:
        """Facts for the route."""

    def streams(self) -> StreamDevice | None:
        """GPU streams for a call under a probe; None on the CPU."""


class CudaKernel:
    """One kernel of the registry as a candidate."""

    def __init__(self, name: str, variant: str = "") -> None:
        self.name = f"{name}:{variant}" if variant else name
        self._kernel = kernel_named(name)
        self._variant = variant
        self.contract = contract_of(self._kernel)
        self._machine: Machine | None = None

    def unavailable(self) -> str | None:
        """Missing compiler or headers, or a GPU that was asked for."""
        if _device() == "gpu":
            from verify.candidates.cuda_gpu import unavailable

            return unavailable()
        from verify.candidates.cuda_host import unavailable

        return unavailable()

    def sources(self) -> Sequence[Path]:
        """The CUDA source with its headers, and this adapter."""
        return (*sorted(self._kernel.source.parent.glob("*.cu*")), Path(__file__))

    def run(self, call: Call) -> Reply:
        """Forward, and backward where asked; raises KernelFaultError for a fault that the backend reports."""
        if self._machine is None:
            self._machine = _machine(self._variant)
        machine = self._machine
        streams = machine.streams() if call.probe_order else None
        return run_probed(call, streams, lambda: self._run(call, machine))

    def _run(self, call: Call, machine: Machine) -> Reply:
        placed = machine.place(call.arrays)
        options = options_of(call, placed)
        q, k, v = (placed[name] for name in ("q", "k", "v"))
        backend = GuardedBackend(machine.backend, call.prefill)
        out, lse = forward(self._kernel, backend, q, k, v, options=options)
        results = {"out": out, "lse": lse}
        if call.backward:
            dlse = placed["dlse"] if call.with_dlse else None
            results |= backward(self._kernel, backend, q, k, v, out, lse, placed["dout"], options=options, dlse=dlse)
        outputs = {name: machine.fetch(array) for name, array in results.items()}
        for status, message in machine.faults():
            raise KernelFaultError(status, message)
        backend.buffers.check()
        if call.problem.dropout_p > 0:
            p = call.problem
            shape = (p.batch, p.nheads, p.seqlen_q, p.seqlen_k)
            outputs["dropout_keep"] = dropout_keep_mask(p.dropout_p, shape, seed=call.seed)
        details = machine.details() | {PREFILL_DETAIL: call.prefill}
        return Reply(outputs=outputs, route=Route(backend=machine.backend.name, details=details))


def options_of(call: Call, placed: Mapping[str, Any]) -> Options:
    """The launcher's options of a call whose arrays were placed on the machine."""
    p = call.problem
    names = {
        "mask": "keep_mask",
        "block_mask": "block_mask",
        "bias": "bias",
        "alibi_slopes": "alibi_slopes",
        "sink": "sink",
        "cu_seqlens_q": "cu_seqlens_q",
        "cu_seqlens_k": "cu_seqlens_k",
        "seqlens_k": "seqlens_k",
    }
    arrays = {option: placed[name] for name, option in names.items() if name in placed}
    if "block_mask" in arrays:
        arrays["block_size"] = p.block_size
    if p.is_ragged:
        arrays |= {"max_seqlen_q": p.seqlen_q, "max_seqlen_k": p.seqlen_k}
    return Options(
        softmax_scale=p.softmax_scale,
        causal=p.causal,
        alignment=p.alignment,
        window=p.window or (None, None),
        softcap=p.softcap,
        dropout_p=p.dropout_p,
        dropout_seed=call.seed,
        **arrays,
    )


def contract_of(kernel: kernel_facts.Kernel) -> Contract:
    """Contract of a kernel from the facts that it declares."""
    facts, able = kernel.arithmetic, kernel.capabilities
    tiles = [choices[0] for choices in kernel.forward.tiles.values()]
    whole = not facts.online
    arithmetic = {
        dtype: Arithmetic(
            probs_dtype=facts.probs_dtype,
            probs_normalised_dtype=facts.probs_dtype,
            probs_backward_dtype=facts.probs_backward_dtype,
            dscores_dtype=facts.dscores_dtype,
            scores_dtype=facts.scores_dtype,
            dprobs_dtype=facts.dprobs_dtype,
            accumulate=facts.accumulate,
            accumulate_chunk=facts.accumulate_chunk,
            # A compiler may or may not fuse multiply and add, so products of fp32 inputs count as rounded.
            products_exact=dtype != "fp32",
            scale_on=facts.scale_on,
            scale_roundings=facts.scale_roundings,
            exp_ulp=facts.exp_ulp,
            log_ulp=facts.log_ulp,
            exp2_fma=facts.exponential == "exp2",
            # The number of tiles enters the bound: the smallest preferred tile is the honest one for all buckets.
            tile_q=0 if whole else min(tile.q for tile in tiles),
            tile_k=0 if whole else min(tile.k for tile in tiles),
            argmax_exact=facts.argmax_exact,
            delta_from=facts.delta_from,
            lse_dtype=facts.lse_dtype,
        )
        for dtype in able.dtypes
    }
    capabilities = Capabilities(
        dtypes=frozenset(able.dtypes),
        features=able.features,
        layouts=frozenset(EVERY_LAYOUT if able.any_strides else LAYOUTS),
        max_head_dim=min(able.max_head_dim or 2**16, max(kernel.forward.tiles) or 2**16),
        backward=able.backward,
        outputs=frozenset({"out", "lse", "dq", "dk", "dv", "dbias", "dsink"}),
        takes_dlse=able.takes_dlse,
        dropout_mask="own",
        nan_behind_mask=able.nan_behind_mask,
        deterministic=able.deterministic,
    )
    return Contract(capabilities=capabilities, arithmetic=arithmetic)


def build(name: str, variant: str = "") -> CudaKernel:
    """The candidate of a kernel and variant.

    Raises
    ------
    UsageError
        Unknown variant.
    """
    known = ("", "checked", "nofma", "reversed", "random")
    require(variant.rstrip("0123456789") in known, "variant", variant, "checked, nofma, reversed or random<seed>")
    return CudaKernel(name, variant)


def build_textbook(variant: str = "") -> CudaKernel:
    """`cuda_textbook`, or a variant of it."""
    return build("cuda_textbook", variant)


def build_tiled(variant: str = "") -> CudaKernel:
    """`cuda_tiled`, or a variant of it."""
    return build("cuda_tiled", variant)


def _device() -> str:
    return os.environ.get(DEVICE_VARIABLE, "cpu")


def _machine(variant: str) -> Machine:
    if _device() == "gpu":
        from verify.candidates.cuda_gpu import GpuMachine

        return GpuMachine()
    from verify.candidates.cuda_host import HostMachine

    return HostMachine(variant)


def fault_status(kind: str) -> Status:
    """Status of a fault kind of the CPU backend."""
    if kind in HANGING:
        return Status.HANG
    return FAULT_STATUSES.get(kind, Status.RACE if kind in ("RACE", "IN_FLIGHT_COPY") else Status.CRASH)
