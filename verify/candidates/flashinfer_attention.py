"""FlashInfer's single-request prefill on CUDA: forward with lse, one sequence of the batch after another.

Its lse is in base 2 and (rows, heads); it is converted here, with one more fp32 rounding that the contract counts.
"""

from __future__ import annotations

import math
from dataclasses import replace
from importlib.util import find_spec

import numpy as np

from verify.candidate import Call, RefusedError, Reply, Route, contiguous
from verify.candidates.cuda_contracts import HALF, fused_arithmetic, fused_contract
from verify.candidates.torch_device import gpu_missing, on_torch_streams, to_device, to_host
from verify.contract import Contract

_FUSED = fused_contract(
    frozenset({"causal", "softcap", "gqa"}), outputs=frozenset({"out", "lse"}), head_dim_multiple=64, deterministic=True
)
CONTRACT = Contract(
    capabilities=_FUSED.capabilities,
    arithmetic={storage: replace(fused_arithmetic(storage, tile_k=16), log_ulp=4.0) for storage in HALF},
)


class FlashInferAttention:
    """flashinfer.single_prefill_with_kv_cache."""

    def __init__(self) -> None:
        self.name = "flashinfer_prefill"
        self.contract = CONTRACT

    def unavailable(self) -> str | None:
        """Missing package or device, or None."""
        missing = find_spec("flashinfer") is None
        return "flashinfer not installed (pip install flashinfer-python)" if missing else gpu_missing()

    @on_torch_streams
    def run(self, call: Call) -> Reply:
        """out and lse of the call."""
        reason = self.contract.capabilities.refusal(call.problem)
        if reason is None and call.backward:
            reason = "FlashInfer has no backward"
        if reason is not None:
            raise RefusedError(reason)
        import flashinfer
        import torch

        p = call.problem
        q, k, v = (to_device(call.arrays[name]) for name in ("q", "k", "v"))
        pairs = [
            flashinfer.single_prefill_with_kv_cache(
                q[sequence],
                k[sequence],
                v[sequence],
                causal=p.causal,
                kv_layout="NHD",
                sm_scale=p.softmax_scale,
                logits_soft_cap=p.softcap or None,
                return_lse=True,
            )
            for sequence in range(p.batch)
        ]
        out = to_host(torch.stack([pair[0] for pair in pairs]))
        base_2 = to_host(torch.stack([pair[1] for pair in pairs]).float())
        lse = contiguous(base_2.swapaxes(1, 2) * np.float32(math.log(2.0)))
        details = {"flashinfer": str(flashinfer.__version__), "device": torch.cuda.get_device_name()}
        return Reply(
            outputs={"out": contiguous(out), "lse": lse}, route=Route(backend="single_prefill", details=details)
        )


def build() -> FlashInferAttention:
    """FlashInfer's prefill."""
    return FlashInferAttention()
