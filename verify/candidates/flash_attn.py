"""FlashAttention 2 (package flash-attn), 3 (flash_attn_interface, fa3-fwd) and 4 (flash-attn-4) on CUDA.

Written from their public signatures; converts only what differs: window sides, results as a tuple or not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from importlib.util import find_spec
from typing import Any

import numpy as np

from verify.candidate import Array, Call, RefusedError, Reply, Route, contiguous
from verify.candidates.cuda_contracts import fused_contract
from verify.candidates.masks import blind_rows
from verify.candidates.torch_device import gpu_missing, on_torch_streams, to_device, to_host
from verify.contract import Contract
from verify.problem import LAYOUTS

_COMMON = frozenset({"causal", "window", "softcap", "gqa"})
_FORWARD = frozenset({"out", "lse"})
FLASH_2 = fused_contract(_COMMON | {"alibi", "ragged"}, head_dim_multiple=8)
FLASH_3 = fused_contract(_COMMON | {"ragged"}, head_dim_multiple=8, sums_groups_in_storage=False)
FLASH_3_FORWARD = fused_contract(
    frozenset({"causal", "softcap", "gqa", "ragged"}), dtypes=("bf16",), head_dim_multiple=8, outputs=_FORWARD
)
"""The build that PyPI has: fa3_fwd_config.py switches off fp16, windows and the backward."""
FLASH_4 = fused_contract(
    _COMMON | {"ragged", "sink"},
    head_dim_multiple=8,
    outputs=frozenset({"out", "lse", "dq", "dk", "dv", "dsink"}),
    layouts=frozenset(LAYOUTS),
    tile_k=48,
    sums_groups_in_storage=False,
    takes_dlse=True,
)
"""flash_attn/cute on sm_90: P of the forward and of dV, and dS, are converted (flash_bwd_sm90.py, cvt_f16); dS takes
the fp32 P; the scale meets dq and dk in fp32; a group is summed in fp32. interface.py, maybe_contiguous, copies
operands that are not aligned to 16 bytes. 48 is its smallest key tile (_tile_size_bwd_sm90)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """Where a major version lives."""

    name: str
    """Distribution, as pip knows it."""
    module: str


class FlashAttention:
    """One major version; autograd through the package's own function."""

    def __init__(
        self, name: str, package: Package, contract: Contract, arguments: Callable[[Call], dict[str, Any]]
    ) -> None:
        self.name = name
        self.contract = contract
        self._package = package
        self._arguments = arguments

    def unavailable(self) -> str | None:
        """Missing package or device, or None."""
        try:
            found = find_spec(self._package.module) is not None
        except ModuleNotFoundError:  # its parent package is missing
            found = False
        return gpu_missing() if found else f"{self._package.module} not installed (pip install {self._package.name})"

    @on_torch_streams
    def run(self, call: Call) -> Reply:
        """out, lse and gradients of the call."""
        reason = self.contract.capabilities.refusal(call.problem)
        if reason is None and call.with_dlse and not self.contract.capabilities.takes_dlse:
            reason = "no gradient of lse is taken"
        if reason is not None:
            raise RefusedError(reason)
        import torch

        module = import_module(self._package.module)
        operands = {name: to_device(call.arrays[name]) for name in ("q", "k", "v", "sink") if name in call.arrays}
        for operand in operands.values() if call.backward else ():
            operand.requires_grad_()
        ragged = call.problem.is_ragged
        function = module.flash_attn_varlen_func if ragged else module.flash_attn_func
        arguments = self._arguments(call) | (_ragged(call) if ragged else {})
        if "sink" in operands:
            arguments["learnable_sink"] = operands["sink"]
        result = function(operands["q"], operands["k"], operands["v"], **arguments)
        out, *further = result if isinstance(result, tuple | list) else (result,)
        outputs = {"out": _host(out)}
        if further and further[0] is not None:
            outputs["lse"] = _natural(call, _host(further[0]))
        if call.backward:
            results, seeds = [out], [to_device(call.arrays["dout"])]
            if call.with_dlse:
                results, seeds = [out, further[0]], [*seeds, to_device(call.arrays["dlse"])]
            gradients = torch.autograd.grad(results, list(operands.values()), seeds, materialize_grads=True)
            outputs |= {f"d{name}": _host(gradient) for name, gradient in zip(operands, gradients, strict=True)}
        details = {
            self._package.name: _version(self._package.name),
            "torch": str(torch.__version__),
            "device": torch.cuda.get_device_name(),
        }
        return Reply(outputs=outputs, route=Route(backend=self._package.module, details=details))


def _natural(call: Call, lse: Array) -> Array:
    """lse with -inf, or the sink, where no key is seen: version 2 stores +inf there for its own backward
    (flash_fwd_kernel.h, INFINITY); with a sink version 4 stores the sink itself."""
    stored = lse.astype(np.float32)
    if "sink" in call.arrays:
        return stored
    marked: Array = np.where(blind_rows(call.problem), np.float32(-np.inf), stored)
    return marked


def _version(distribution: str) -> str:
    try:
        return version_of(distribution)
    except PackageNotFoundError:
        return "unknown"


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
    package = Package(name="flash-attn", module="flash_attn.flash_attn_interface")
    return FlashAttention("flash_attn_2", package, FLASH_2, _arguments_2)


def build_3() -> FlashAttention:
    """FlashAttention 3."""
    package = Package(name="flash-attn-3", module="flash_attn_interface")
    return FlashAttention("flash_attn_3", package, FLASH_3, _arguments_3)


def build_3_forward() -> FlashAttention:
    """FlashAttention 3 as PyPI has it: forward alone, bf16."""
    package = Package(name="fa3-fwd", module="fa3_fwd_interface")
    return FlashAttention("flash_attn_3_forward", package, FLASH_3_FORWARD, _arguments_3)


def build_4() -> FlashAttention:
    """FlashAttention 4."""
    package = Package(name="flash-attn-4", module="flash_attn.cute")
    return FlashAttention("flash_attn_4", package, FLASH_4, _arguments_4)
