"""This project's Triton kernel as a candidate: forward with lse; on CUDA, or on the CPU under TRITON_INTERPRET=1."""

from __future__ import annotations

import os
from importlib.util import find_spec

from verify.candidate import Call, RefusedError, Reply, Route
from verify.candidates.masks import diagonal_offset
from verify.candidates.torch_arrays import to_tensor
from verify.candidates.torch_device import gpu_missing, on_torch_streams, to_device, to_host
from verify.contract import Arithmetic, Capabilities, Contract

ROWS, KEYS = 32, 32
"""Tile: small, so that fp32 inputs of head dim 256 fit the shared memory of every architecture since sm_80."""
STORAGE = ("fp32", "fp16", "bf16")


def _arithmetic(storage: str) -> Arithmetic:
    """fp16 and bf16 products on tensor cores, fp32 ones on CUDA cores (input_precision="ieee"); P is converted to the
    storage dtype; scale*log2(e) is rounded once and multiplied once; exp2 and log2 are the hardware's.
    """
    tensor_cores = storage != "fp32"
    return Arithmetic(
        probs_dtype=storage,
        accumulate="rtz" if tensor_cores else "rne",
        accumulate_chunk=16 if tensor_cores else 1,
        products_exact=tensor_cores,
        scale_roundings=4,
        exp_ulp=2.0,
        log_ulp=4.0,
        tile_q=ROWS,
        tile_k=KEYS,
    )


def _contract(dtypes: tuple[str, ...]) -> Contract:
    capabilities = Capabilities(
        dtypes=frozenset(dtypes),
        features=frozenset({"causal", "causal_topleft", "gqa"}),
        backward=False,
        outputs=frozenset({"out", "lse"}),
    )
    return Contract(capabilities=capabilities, arithmetic={storage: _arithmetic(storage) for storage in dtypes})


class TritonAttention:
    """Launches the kernel of triton_kernel.py."""

    def __init__(self) -> None:
        self.name = "triton_attention"
        # Triton's interpreter (3.9) multiplies the bits of bf16 as integers in tl.dot.
        self.contract = _contract(STORAGE[:2] if _interpreted() else STORAGE)

    def unavailable(self) -> str | None:
        """Missing package or device, or None."""
        if find_spec("triton") is None:
            return "triton not installed (pip install triton)"
        return None if _interpreted() else gpu_missing()

    @on_torch_streams
    def run(self, call: Call) -> Reply:
        """out and lse of the call."""
        reason = self.contract.capabilities.refusal(call.problem)
        if reason is None and call.backward:
            reason = "forward alone"
        if reason is not None:
            raise RefusedError(reason)
        import torch
        import triton

        from verify.candidates.triton_kernel import attention_forward

        p = call.problem
        bring = to_tensor if _interpreted() else to_device
        q, k, v = (bring(call.arrays[name]) for name in ("q", "k", "v"))
        out = torch.full((p.batch, p.seqlen_q, p.nheads, p.head_dim), torch.nan, dtype=q.dtype, device=q.device)
        lse = torch.full((p.batch, p.nheads, p.seqlen_q), torch.nan, dtype=torch.float32, device=q.device)
        if p.seqlen_q:
            attention_forward[(triton.cdiv(p.seqlen_q, ROWS), p.batch * p.nheads)](
                *(q, k, v, out, lse),
                *(*q.stride(), *k.stride(), *v.stride()),
                *(p.seqlen_q, p.seqlen_k, p.nheads, p.group, p.softmax_scale, diagonal_offset(p)),
                HEAD_DIM=p.head_dim,
                DIM=max(16, triton.next_power_of_2(p.head_dim)),
                CAUSAL=p.causal,
                ROWS=ROWS,
                KEYS=KEYS,
            )
        device = "cpu (interpreter)" if _interpreted() else torch.cuda.get_device_name()
        details = {"triton": str(triton.__version__), "torch": str(torch.__version__), "device": device}
        outputs = {"out": to_host(out), "lse": to_host(lse)}
        return Reply(outputs=outputs, route=Route(backend="triton", details=details))


def _interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


def build() -> TritonAttention:
    """The Triton kernel."""
    return TritonAttention()
