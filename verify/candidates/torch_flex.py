"""torch flex_attention: on the CPU without compilation and forward alone (it has no CPU backward), on CUDA compiled.

Masks become a BlockMask; bias, ALiBi and softcap become the score_mod. Compiling takes 10 to 20 s a shape.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from verify.candidate import Array, Call, RefusedError, Reply, Route, contiguous
from verify.candidates.masks import diagonal_offset
from verify.candidates.torch_arrays import heads_first, rows_first, to_array, to_tensor, torch_missing
from verify.candidates.torch_contracts import FLEX, FLEX_CUDA
from verify.candidates.torch_device import gpu_missing, on_torch_streams, to_device, to_host
from verify.contract import Contract

Bring = Callable[[Array], Any]
"""Array to a tensor on the device of the run."""
COMPILED_SHAPES = 4096
"""torch.compile gives up after 8 shapes of a function unless told otherwise."""


class TorchFlex:
    """flex_attention as the library runs it without torch.compile."""

    def __init__(self, name: str = "torch_flex", contract: Contract = FLEX) -> None:
        self.name = name
        self.contract = contract

    def unavailable(self) -> str | None:
        """Why torch cannot be used, or None."""
        return torch_missing()

    def run(self, call: Call) -> Reply:
        """out and lse of the call.

        Raises
        ------
        RefusedError
            The problem is not declared, a backward is asked for, or torch declines.
        """
        reason = self.contract.capabilities.refusal(call.problem)
        if reason is None and call.backward:
            reason = "FlexAttention does not support backward on CPU"
        if reason is not None:
            raise RefusedError(reason)
        from torch.nn.attention.flex_attention import AuxRequest, flex_attention

        from verify.candidates.torch_runtime import facts, heard_warnings, one_thread

        p = call.problem
        q, k, v = (heads_first(call.arrays[name]) for name in ("q", "k", "v"))
        with one_thread(), heard_warnings(), _untraced():
            out, aux = flex_attention(
                q,
                k,
                v,
                score_mod=_score_mod(call, to_tensor),
                block_mask=_block_mask(call, to_tensor, "cpu"),
                scale=p.softmax_scale,
                enable_gqa=p.group > 1,
                return_aux=AuxRequest(lse=True),
            )
        outputs = {"out": contiguous(rows_first(out)), "lse": contiguous(to_array(aux.lse))}
        return Reply(outputs=outputs, route=Route(backend="math_attention", details=facts() | {"compiled": "no"}))


class TorchFlexCuda:
    """flex_attention under torch.compile; gradients from autograd."""

    def __init__(self, name: str = "torch_flex_cuda", contract: Contract = FLEX_CUDA) -> None:
        self.name = name
        self.contract = contract

    def unavailable(self) -> str | None:
        """Why torch has no CUDA device, or no compiler, or None."""
        return gpu_missing() or (None if find_spec("triton") is not None else "triton not installed")

    @on_torch_streams
    def run(self, call: Call) -> Reply:
        """out, lse and gradients of the call."""
        reason = self.contract.capabilities.refusal(call.problem)
        if reason is not None:
            raise RefusedError(reason)
        import torch
        from torch.nn.attention.flex_attention import AuxRequest

        from verify.candidates.torch_runtime import heard_warnings

        p = call.problem
        operands = [to_device(call.arrays[name]).transpose(1, 2) for name in ("q", "k", "v")]
        for operand in operands if call.backward else ():
            operand.requires_grad_()
        with heard_warnings():
            out, aux = _compiled()(
                *operands,
                score_mod=_score_mod(call, to_device),
                block_mask=_block_mask(call, to_device, "cuda"),
                scale=p.softmax_scale,
                enable_gqa=p.group > 1,
                return_aux=AuxRequest(lse=True),
            )
            results, seeds = [out], [to_device(call.arrays["dout"]).transpose(1, 2)] if call.backward else []
            if call.backward and call.with_dlse:
                results, seeds = [out, aux.lse], [*seeds, to_device(call.arrays["dlse"])]
            gradients = torch.autograd.grad(results, operands, seeds, materialize_grads=True) if call.backward else ()
        outputs = {"out": contiguous(to_host(out.transpose(1, 2))), "lse": contiguous(to_host(aux.lse))}
        for name, gradient in zip(("dq", "dk", "dv"), gradients, strict=False):
            outputs[name] = contiguous(to_host(gradient.transpose(1, 2)))
        details = {"torch": str(torch.__version__), "device": torch.cuda.get_device_name(), "compiled": "yes"}
        return Reply(outputs=outputs, route=Route(backend="flex_attention", details=details))


@functools.cache
def _compiled() -> Any:
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    torch._dynamo.config.recompile_limit = COMPILED_SHAPES
    torch._dynamo.config.accumulated_recompile_limit = COMPILED_SHAPES
    return torch.compile(flex_attention, dynamic=False)


@contextmanager
def _untraced() -> Iterator[None]:
    """The library's own switch to run the operator directly; else it traces the closures of every call, 0.3 s each."""
    from torch.nn.attention import flex_attention as module

    before = module._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG
    module._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True
    try:
        yield
    finally:
        module._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = before


def _score_mod(call: Call, bring: Bring) -> Callable[..., Any] | None:
    """Softcap, then bias, then ALiBi, as a function of one score and its indices; None where there is nothing to do."""
    import torch

    p, arrays = call.problem, call.arrays
    offset = diagonal_offset(p)
    bias = bring(arrays["bias"]) if "bias" in arrays else None
    slopes = bring(arrays["alibi_slopes"]) if "alibi_slopes" in arrays else None
    if bias is None and slopes is None and p.softcap == 0:
        return None
    if bias is not None:
        bias = bias.expand(p.batch, p.nheads, p.seqlen_q, p.seqlen_k)

    def modified(score: Any, batch: Any, head: Any, row: Any, key: Any) -> Any:
        if p.softcap > 0:
            score = p.softcap * torch.tanh(score / p.softcap)
        if bias is not None:
            score = score + bias[batch, head, row, key]
        if slopes is not None:
            score = score - slopes[head] * (row + offset - key).abs()
        return score

    return modified


def _block_mask(call: Call, bring: Bring, device: str) -> Any:
    """BlockMask of causality, window and pattern, or None where every key is visible."""
    p, arrays = call.problem, call.arrays
    offset = diagonal_offset(p)
    mask = bring(arrays["mask"]) if "mask" in arrays else None
    blocks = bring(arrays["block_mask"]) if "block_mask" in arrays else None
    left, right = p.window if p.window is not None else (None, None)
    if p.causal:
        right = 0
    if mask is None and blocks is None and left is None and right is None:
        return None

    def visible(batch: Any, head: Any, row: Any, key: Any) -> Any:
        distance = row + offset - key
        keep = distance == distance
        if right is not None:
            keep = keep & (distance >= -right)
        if left is not None:
            keep = keep & (distance <= left)
        if mask is not None:
            keep = keep & mask[batch, head, row, key]
        if blocks is not None:
            keep = keep & blocks[batch, head, row // p.block_size[0], key // p.block_size[1]]
        return keep

    from torch.nn.attention.flex_attention import create_block_mask

    return create_block_mask(visible, p.batch, p.nheads, p.seqlen_q, p.seqlen_k, device=device)


def build() -> TorchFlex:
    """flex_attention on the CPU."""
    return TorchFlex()


def build_cuda() -> TorchFlexCuda:
    """flex_attention on CUDA."""
    return TorchFlexCuda()
