"""xformers.ops.memory_efficient_attention on CUDA with its CUTLASS kernels forced; gradients from autograd."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from verify.candidate import Call, RefusedError, Reply, Route, contiguous
from verify.candidates.cuda_contracts import fused_contract
from verify.candidates.torch_device import gpu_missing, on_torch_streams, to_device, to_host

CONTRACT = fused_contract(
    frozenset({"causal", "causal_topleft"}),
    outputs=frozenset({"out", "dq", "dk", "dv"}),
    head_dim_multiple=8,
    rounds_probs_in_dscores=True,
    scale_on_dscores=True,
)
"""The same kernels as torch's: xformers 0.0.35 calls aten._efficient_attention_forward."""


class XformersAttention:
    """The CUTLASS forward and backward of xformers."""

    def __init__(self) -> None:
        self.name = "xformers_attention"
        self.contract = CONTRACT

    def unavailable(self) -> str | None:
        """Missing package or device, or None."""
        return gpu_missing() if find_spec("xformers") is not None else "xformers not installed (pip install xformers)"

    @on_torch_streams
    def run(self, call: Call) -> Reply:
        """out and gradients of the call."""
        reason = self.contract.capabilities.refusal(call.problem)
        if reason is not None:
            raise RefusedError(reason)
        import torch
        import xformers
        from xformers import ops

        operands = [to_device(call.arrays[name]) for name in ("q", "k", "v")]
        for operand in operands if call.backward else ():
            operand.requires_grad_()
        forced = ops.MemoryEfficientAttentionCutlassOp
        bias = _causal(call)
        try:
            out = ops.memory_efficient_attention(*operands, attn_bias=bias, scale=call.problem.softmax_scale, op=forced)
        except (NotImplementedError, ValueError) as error:  # what its dispatch raises, reasons in the last lines
            raise RefusedError(" ".join(str(error).split())) from error
        results = {"out": out}
        if call.backward:
            gradients = torch.autograd.grad(out, operands, to_device(call.arrays["dout"]), materialize_grads=True)
            results |= {f"d{name}": gradient for name, gradient in zip("qkv", gradients, strict=True)}
        outputs = {name: contiguous(to_host(tensor)) for name, tensor in results.items()}
        details = {"xformers": str(xformers.__version__), "device": torch.cuda.get_device_name()}
        return Reply(outputs=outputs, route=Route(backend="cutlass", details=details))


def _causal(call: Call) -> Any:
    from xformers.ops import fmha

    p = call.problem
    if not p.causal:
        return None
    if p.alignment == "top_left" or p.seqlen_q == p.seqlen_k:
        return fmha.attn_bias.LowerTriangularMask()
    return fmha.attn_bias.LowerTriangularFromBottomRightMask()


def build() -> XformersAttention:
    """xformers on CUDA."""
    return XformersAttention()
