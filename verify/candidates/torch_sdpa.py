"""torch.nn.functional.scaled_dot_product_attention on the CPU, one candidate for each backend, that backend alone.

Converts layouts and masks at the edge; computes nothing that the library is asked for.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from verify.candidate import Array, Call, RefusedError, Reply, Route, contiguous
from verify.candidates.torch_arrays import heads_first, rows_first, to_array, to_tensor, torch_missing
from verify.candidates.torch_contracts import FLASH, MATH
from verify.contract import Contract
from verify.problem import AttentionProblem

_FLASH_OPERATOR = "_scaled_dot_product_flash_attention_for_cpu"
_MATH_OPERATOR = "_safe_softmax"
_EMPTY = "torch answers an empty sequence with zeros and runs no backend"


class TorchSdpa:
    """One backend of scaled_dot_product_attention, forced; the gradients come from autograd."""

    def __init__(self, name: str, backend: str, contract: Contract) -> None:
        self.name = name
        self.contract = contract
        self._backend = backend

    def unavailable(self) -> str | None:
        """Why torch cannot be used, or None."""
        return torch_missing()

    def run(self, call: Call) -> Reply:
        """Outputs of the call.

        Raises
        ------
        RefusedError
            The problem is not declared, or torch has no kernel for it; the message carries torch's reason.
        """
        reason = self.contract.capabilities.refusal(call.problem)
        if reason is None and call.with_dlse:
            reason = "no gradient of lse is taken"
        if reason is not None:
            raise RefusedError(reason)
        from verify.candidates.torch_runtime import facts, one_thread

        with one_thread():
            outputs, ran = self._compute(call)
        fallback = _EMPTY if ran == "none" else ""
        return Reply(
            outputs=outputs,
            route=Route(backend=ran, asked=self._backend, fallback_reason=fallback, details=facts()),
        )

    def _compute(self, call: Call) -> tuple[dict[str, Array], str]:
        import torch

        operands = {name: heads_first(call.arrays[name]) for name in ("q", "k", "v")}
        bias = to_tensor(call.arrays["bias"]) if "bias" in call.arrays else None
        wanted = dict(operands)
        if bias is not None and "dbias" in self.contract.capabilities.outputs:
            wanted["bias"] = bias
        for tensor in wanted.values() if call.backward else ():
            tensor.requires_grad_()
        out, ran, lse = self._attention(call, operands, bias)
        outputs = {"out": contiguous(rows_first(out))}
        if "lse" in self.contract.capabilities.outputs:
            outputs["lse"] = _lse(call, lse)
        if call.backward:
            # An empty sequence leaves the bias out of the graph; its gradient is then zero, not missing.
            dout = heads_first(call.arrays["dout"])
            gradients = torch.autograd.grad(out, list(wanted.values()), dout, materialize_grads=True)
            for name, gradient in zip(wanted, gradients, strict=True):
                outputs[f"d{name}"] = contiguous(to_array(gradient) if name == "bias" else rows_first(gradient))
        return outputs, ran

    def _attention(self, call: Call, operands: dict[str, Any], bias: Any) -> tuple[Any, str, Any]:
        """(out, backend that ran, lse or None)."""
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.functional import scaled_dot_product_attention

        from verify.candidates.torch_runtime import OperatorLog, heard_warnings

        p = call.problem
        keep, is_causal = _keep(call, has_bias=bias is not None)
        mask = bias if keep is None else to_tensor(keep)
        if bias is not None and keep is not None:
            # In fp32, so that a shared bias has its gradient summed as torch sums it without the mask: rounded once.
            wide = bias.float() if bias.requires_grad else bias
            mask = wide.masked_fill(~mask, float("-inf"))
        with heard_warnings() as heard, sdpa_kernel(getattr(SDPBackend, self._backend)), OperatorLog() as log:
            try:
                out = scaled_dot_product_attention(
                    operands["q"],
                    operands["k"],
                    operands["v"],
                    attn_mask=mask,
                    is_causal=is_causal,
                    scale=p.softmax_scale,
                    enable_gqa=p.group > 1,
                )
            except RuntimeError as error:
                refused = error
                out = None
        if out is None:
            raise RefusedError("; ".join(heard[1:]) or str(refused).splitlines()[0])
        if _FLASH_OPERATOR in log.results:
            return out, "FLASH_ATTENTION", log.results[_FLASH_OPERATOR][1]
        return out, "MATH" if _MATH_OPERATOR in log.results else "none", None


def _keep(call: Call, *, has_bias: bool) -> tuple[NDArray[np.bool_] | None, bool]:
    """(keep-mask to pass or None, is_causal). torch's is_causal is top-left and excludes a mask beside it."""
    p = call.problem
    given = call.arrays.get("mask")
    if not p.causal:
        return given, False
    top_left = p.alignment == "top_left" or p.seqlen_q == p.seqlen_k
    if top_left and given is None and not has_bias:
        return None, True
    causal = causal_keep(p)
    return causal if given is None else given & causal, False


def causal_keep(p: AttentionProblem) -> NDArray[np.bool_]:
    """Causal keep-mask (seqlen_q, seqlen_k) in the alignment of the problem."""
    offset = p.seqlen_k - p.seqlen_q if p.alignment == "bottom_right" else 0
    keep: NDArray[np.bool_] = np.tri(p.seqlen_q, p.seqlen_k, offset, dtype=bool)
    return keep


def _lse(call: Call, lse: Any) -> Array:
    """lse (batch, heads, seqlen_q) of the operator, with -inf in rows that see no key.

    The operator stores 0 there for its own backward (FlashAttentionKernel.cpp: "full masked out rows") and does not
    run at all on empty sequences, so lse of such rows is the adapter's; their out and gradients are torch's.
    """
    p = call.problem
    shape = (p.batch, p.nheads, p.seqlen_q)
    if lse is None:
        return np.full(shape, -np.inf, dtype=np.float32)
    keep = call.arrays.get("mask", np.ones((1, 1, p.seqlen_q, p.seqlen_k), dtype=bool))
    if p.causal:
        keep = keep & causal_keep(p)
    if "bias" in call.arrays:
        keep = keep & (call.arrays["bias"] != -np.inf)
    return np.where(keep.any(axis=-1), to_array(lse), np.float32(-np.inf))


def build_flash() -> TorchSdpa:
    """The flash backend of torch on the CPU."""
    return TorchSdpa("torch_flash", "FLASH_ATTENTION", FLASH)


def build_math() -> TorchSdpa:
    """The unfused backend of torch on the CPU."""
    return TorchSdpa("torch_math", "MATH", MATH)
