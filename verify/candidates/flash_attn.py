"""FlashAttention 2 (package flash-attn), 3 (flash_attn_interface) and 4 (flash_attn.cute) on CUDA.

Written from their public signatures; converts only what differs: window sides, results as a tuple or not.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from verify.candidate import Array, Call, RefusedError, Reply, Route, contiguous
from verify.candidates.cuda_contracts import fused_contract
from verify.candidates.masks import blind_rows
from verify.candidates.torch_device import gpu_missing, on_torch_streams, to_device, to_host
from verify.contract import Contract

_COMMON = frozenset({"causal", "window", "softcap", "gqa"})
FLASH_2 = fused_contract(_COMMON | {"alibi", "ragged"}, head_dim_multiple=8)
FLASH_3 = fused_contract(_COMMON | {"ragged"}, head_dim_multiple=8)
FLASH_4 = fused_contract(_COMMON, max_head_dim=128, head_dim_multiple=8)


class FlashAttention:
    """One major version; autograd through the package's own function."""

    def __init__(self, name: str, module: str, contract: Contract, arguments: Callable[[Call], dict[str, Any]]) -> None:
        self.name = name
        self.contract = contract
        self._module = module
        self._arguments = arguments

    def unavailable(self) -> str | None:
        """Missing package or device, or None."""
        try:
            found = find_spec(self._module) is not None
        except ModuleNotFoundError:  # its parent package is missing
            found = False
        return gpu_missing() if found else f"{self._module} not installed"

    @on_torch_streams
    def run(self, call: Call) -> Reply:
        """out, lse and gradients of the call."""
        reason = self.contract.capabilities.refusal(call.problem)
        if reason is None and call.with_dlse:
            reason = "no gradient of lse is taken"
        if reason is not None:
            raise RefusedError(reason)
        import torch

        module = import_module(self._module)
        operands = [to_device(call.arrays[name]) for name in ("q", "k", "v")]
        for operand in operands if call.backward else ():
            operand.requires_grad_()
        ragged = call.problem.is_ragged
        function = module.flash_attn_varlen_func if ragged else module.flash_attn_func
        result = function(*operands, **self._arguments(call), **(_ragged(call) if ragged else {}))
        out, *further = result if isinstance(result, tuple | list) else (result,)
        outputs = {"out": _host(out)}
        if further and further[0] is not None:
            # Version 2 stores +inf for a row that sees no key, for its own backward (flash_fwd_kernel.h, INFINITY).
            lse = _host(further[0]).astype(np.float32)
            outputs["lse"] = np.where(blind_rows(call.problem), np.float32(-np.inf), lse)
        if call.backward:
            gradients = torch.autograd.grad(out, operands, to_device(call.arrays["dout"]), materialize_grads=True)
            outputs |= {f"d{name}": _host(gradient) for name, gradient in zip("qkv", gradients, strict=True)}
        version = str(getattr(import_module(self._module.partition(".")[0]), "__version__", "unknown"))
        details = {self._module: version, "torch": str(torch.__version__), "device": torch.cuda.get_device_name()}
        return Reply(outputs=outputs, route=Route(backend=self._module, details=details))


def _host(tensor: Any) -> Array:
    return contiguous(to_host(tensor))


def _ragged(call: Call) -> dict[str, Any]:
    p = call.problem
    lengths = {name: to_device(call.arrays[name]) for name in ("cu_seqlens_q", "cu_seqlens_k")}
    return lengths | {"max_seqlen_q": p.seqlen_q, "max_seqlen_k": p.seqlen_k}


def _common(call: Call, unbounded: int | None) -> dict[str, Any]:
    p = call.problem
    sides = tuple(unbounded if side is None else side for side in p.window or (None, None))
    return {"softmax_scale": p.softmax_scale, "causal": p.causal, "window_size": sides, "softcap": p.softcap}


def _arguments_2(call: Call) -> dict[str, Any]:
    arguments = _common(call, -1) | {"return_attn_probs": True}
    if "alibi_slopes" in call.arrays:
        arguments["alibi_slopes"] = to_device(call.arrays["alibi_slopes"])
    return arguments


def _arguments_3(call: Call) -> dict[str, Any]:
    return _common(call, -1) | {"return_attn_probs": True}


def _arguments_4(call: Call) -> dict[str, Any]:
    return _common(call, None) | {"return_lse": True}


def build_2() -> FlashAttention:
    """FlashAttention 2."""
    return FlashAttention("flash_attn_2", "flash_attn", FLASH_2, _arguments_2)


def build_3() -> FlashAttention:
    """FlashAttention 3."""
    return FlashAttention("flash_attn_3", "flash_attn_interface", FLASH_3, _arguments_3)


def build_4() -> FlashAttention:
    """FlashAttention 4."""
    return FlashAttention("flash_attn_4", "flash_attn.cute", FLASH_4, _arguments_4)
