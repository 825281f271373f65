"""torch.nn.functional.scaled_dot_product_attention on CUDA, one candidate for each backend, that backend alone.

The route says which operator really ran. Computes nothing that the library is asked for.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from verify.candidate import Array, Call, RefusedError, Reply, Route, contiguous
from verify.candidates.cuda_contracts import fused_contract
from verify.candidates.masks import blind_rows, keep_mask
from verify.candidates.torch_contracts import MATH as MATH_ON_CPU
from verify.candidates.torch_device import gpu_missing, on_torch_streams, to_device, to_host
from verify.contract import Contract

_OPERATORS = {
    "_scaled_dot_product_flash_attention": "FLASH_ATTENTION",
    "_scaled_dot_product_efficient_attention": "EFFICIENT_ATTENTION",
    "_scaled_dot_product_cudnn_attention": "CUDNN_ATTENTION",
    "_safe_softmax": "MATH",
}
"""Operator below autograd -> backend that it belongs to."""
_GRADIENTS = frozenset({"out", "dq", "dk", "dv"})

FLASH = fused_contract(frozenset({"causal", "gqa"}))
"""Base addresses off by less than 16 bytes are not refused; they end the CUDA context (docs/findings.md)."""
EFFICIENT = fused_contract(
    frozenset({"causal", "causal_topleft", "window", "boolean", "bias"}),
    head_dim_multiple=8,
    outputs=_GRADIENTS,
    rounds_probs_in_dscores=True,
    scale_on_dscores=True,
)
"""mem_eff_attention/kernel_backward.h: dS is made from the P that waits in shared memory in the storage dtype, and is
multiplied by the scale before it is stored.
sdp_utils.cpp, minimum_gemm_alignment: head dims in 16 bytes; kernel_backward.h, CHECK_ALIGNED_PTR: addresses too."""
CUDNN = fused_contract(
    frozenset({"causal", "causal_topleft", "window", "boolean", "bias", "gqa"}),
    max_head_dim=128,
    head_dim_multiple=8,
    outputs=_GRADIENTS,
    fully_masked_rows=False,
    scale_on_dscores=True,
)
"""Closed source. That dS is scaled before it is stored was measured: cuDNN 9 on an H200 exceeds the bound without it in
the elements, and by the factors, of an emulation that does so (docs/findings.md).
sdp_utils.cpp, check_cudnn_tensor_shapes: head dims, and no seqlen_k = 1, which no field states. Rows that see no key
get values of the library's own choice."""
MATH = Contract(capabilities=MATH_ON_CPU.capabilities, arithmetic=MATH_ON_CPU.arithmetic)
"""The same code as on the CPU (fp32 inside); torch keeps TF32 off unless it is told otherwise."""


class TorchCudaSdpa:
    """One backend on the current CUDA device; the gradients come from autograd."""

    def __init__(self, name: str, backend: str, contract: Contract) -> None:
        self.name = name
        self.contract = contract
        self._backend = backend

    def unavailable(self) -> str | None:
        """Why torch has no CUDA device, or None."""
        return gpu_missing()

    @on_torch_streams
    def run(self, call: Call) -> Reply:
        """Outputs of the call; RefusedError where the backend declines, with torch's reason."""
        reason = self.contract.capabilities.refusal(call.problem)
        if reason is None and call.with_dlse:
            reason = "no gradient of lse is taken"
        if reason is not None:
            raise RefusedError(reason)
        import torch

        operands = [to_device(call.arrays[name]).transpose(1, 2) for name in ("q", "k", "v")]
        bias = to_device(call.arrays["bias"]) if "bias" in call.arrays else None
        wanted = dict(zip("qkv", operands, strict=True))
        if bias is not None and "dbias" in self.contract.capabilities.outputs:
            wanted["bias"] = bias
        for tensor in wanted.values() if call.backward else ():
            tensor.requires_grad_()
        out, ran, lse = self._attention(call, operands, bias)
        outputs = {"out": _rows_first(out)}
        if "lse" in self.contract.capabilities.outputs:
            # The kernel stores +inf for a row that sees no key, for its own backward (flash_fwd_kernel.h, INFINITY).
            outputs["lse"] = np.where(blind_rows(call.problem), np.float32(-np.inf), to_host(lse).astype(np.float32))
        if call.backward:
            dout = to_device(call.arrays["dout"]).transpose(1, 2)
            gradients = torch.autograd.grad(out, list(wanted.values()), dout, materialize_grads=True)
            for name, gradient in zip(wanted, gradients, strict=True):
                outputs[f"d{name}"] = contiguous(to_host(gradient)) if name == "bias" else _rows_first(gradient)
        details = {"torch": str(torch.__version__), "device": torch.cuda.get_device_name()}
        missed = "" if ran == self._backend else f"the operator of {ran} ran"
        return Reply(
            outputs=outputs, route=Route(backend=ran, asked=self._backend, fallback_reason=missed, details=details)
        )

    def _attention(self, call: Call, operands: list[Any], bias: Any) -> tuple[Any, str, Any]:
        """(out, backend that ran, its second result)."""
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.functional import scaled_dot_product_attention

        from verify.candidates.torch_runtime import OperatorLog, heard_warnings

        p = call.problem
        mask, is_causal = self._mask(call, bias)
        q, k, v = operands
        out = None
        with heard_warnings() as heard, sdpa_kernel(getattr(SDPBackend, self._backend)), OperatorLog() as log:
            try:
                out = scaled_dot_product_attention(
                    q, k, v, attn_mask=mask, is_causal=is_causal, scale=p.softmax_scale, enable_gqa=p.group > 1
                )
            except RuntimeError as error:
                if "No available kernel" not in str(error):
                    raise
        if out is None:
            raise RefusedError(refusal_reason(heard, p.seqlen_k))
        for operator, backend in _OPERATORS.items():
            if operator in log.results:
                result = log.results[operator]
                return out, backend, result[1] if isinstance(result, tuple | list) else None
        return out, "none", None

    def _mask(self, call: Call, bias: Any) -> tuple[Any, bool]:
        """(attn_mask, is_causal). torch's is_causal is top-left; the flash backend takes no mask but a causal one."""
        p = call.problem
        if self._backend == "FLASH_ATTENTION":
            if not p.causal or p.seqlen_q == p.seqlen_k:
                return None, p.causal
            from torch.nn.attention.bias import causal_lower_right

            return causal_lower_right(p.seqlen_q, p.seqlen_k), False
        native = p.causal and (p.alignment == "top_left" or p.seqlen_q == p.seqlen_k)
        native = native and p.window is None and not {"mask", "bias"} & set(call.arrays)
        keep = None if native else keep_mask(call)
        seen = None if keep is None else to_device(keep)
        if bias is None or seen is None:
            return seen if bias is None else bias, native
        # In fp32 where it has a gradient, so that a shared bias has it summed as torch sums it without the mask.
        wide = bias.float() if bias.requires_grad else bias
        return wide.masked_fill(~seen, float("-inf")), False


def refusal_reason(heard: list[str], seqlen_k: int) -> str:
    """Why torch found no kernel. It says once a process that cuDNN takes no single key, so that is said here."""
    own = [line for line in heard if "runtime disabled" not in line and not line.endswith("not used because:")]
    if seqlen_k == 1 and not own:
        return "cudnn SDPA does not support key/value sequence length 1."
    return "; ".join(own) or "no available kernel"


def _rows_first(tensor: Any) -> Array:
    return contiguous(to_host(tensor.transpose(1, 2)))


def build_flash() -> TorchCudaSdpa:
    """FlashAttention-2 inside torch."""
    return TorchCudaSdpa("torch_cuda_flash", "FLASH_ATTENTION", FLASH)


def build_efficient() -> TorchCudaSdpa:
    """The memory-efficient kernels inside torch."""
    return TorchCudaSdpa("torch_cuda_efficient", "EFFICIENT_ATTENTION", EFFICIENT)


def build_cudnn() -> TorchCudaSdpa:
    """cuDNN's attention by torch."""
    return TorchCudaSdpa("torch_cuda_cudnn", "CUDNN_ATTENTION", CUDNN)


def build_math() -> TorchCudaSdpa:
    """The unfused backend on CUDA."""
    return TorchCudaSdpa("torch_cuda_math", "MATH", MATH)
