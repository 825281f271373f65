"""Candidates for the stream checks on a GPU: right in a usual call, each with one fault in the order of its work.

Imports torch or CuPy only where a candidate is made.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from verify import register
from verify.candidate import Call, Candidate, Reply
from verify.candidates import load
from verify.candidates.cuda import CudaKernel
from verify.candidates.cuda_gpu import CupyStreams
from verify.candidates.torch_device import on_torch_streams
from verify.candidates.user.function import FunctionCandidate
from verify.registration import declaration_of

LONG_CYCLES = 40_000_000
"""About 20 ms: work that is still running when the call returns."""
THREAD_DELAY_S = 0.1


def function_candidate(function: Callable[..., Any]) -> Candidate:
    """A registered function as a candidate."""
    return FunctionCandidate(declaration_of(function))


def _torch_attention(q: Any, k: Any, v: Any, softmax_scale: float) -> Any:
    import torch

    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * softmax_scale
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(dim=-1), v)


@register(arrays="torch", arithmetic="eager", autograd=True)
def torch_honest(q: Any, k: Any, v: Any, softmax_scale: float) -> Any:
    """On the current stream, backward too."""
    return _torch_attention(q, k, v, softmax_scale)


@register(arrays="torch", arithmetic="eager")
def torch_honest_side_stream(q: Any, k: Any, v: Any, softmax_scale: float) -> Any:
    """On a stream of its own that waits for the current one and is waited for."""
    import torch

    side, current = torch.cuda.Stream(), torch.cuda.current_stream()
    side.wait_stream(current)
    with torch.cuda.stream(side):
        out = _torch_attention(q, k, v, softmax_scale)
    current.wait_stream(side)
    out.record_stream(current)
    return out


@register(arrays="torch", arithmetic="eager")
def torch_on_default_stream(q: Any, k: Any, v: Any, softmax_scale: float) -> Any:
    """On the legacy default stream, whatever is current."""
    import torch

    with torch.cuda.stream(torch.cuda.default_stream()):
        out = _torch_attention(q, k, v, softmax_scale)
    torch.cuda.default_stream().synchronize()
    return out


@register(arrays="torch", arithmetic="eager")
def torch_on_own_stream(q: Any, k: Any, v: Any, softmax_scale: float) -> Any:
    """On a stream of its own that waits for nothing; done at the return."""
    import torch

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        out = _torch_attention(q, k, v, softmax_scale)
    side.synchronize()
    return out


@register(arrays="torch", arithmetic="eager")
def torch_deferred(q: Any, k: Any, v: Any, softmax_scale: float) -> Any:
    """On a side stream that nothing waits for."""
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    out = torch.full_like(q, torch.nan)
    with torch.cuda.stream(side):
        torch.cuda._sleep(LONG_CYCLES)
        out.copy_(_torch_attention(q, k, v, softmax_scale))
    return out


@register(arrays="torch", arithmetic="eager")
def torch_in_thread(q: Any, k: Any, v: Any, softmax_scale: float) -> Any:
    """By a thread that copies the result when the call has returned."""
    import torch

    out, right = torch.full_like(q, torch.nan), _torch_attention(q, k, v, softmax_scale)

    def work() -> None:
        # Inputs that come late must not hold `right` back until the copy: it would take what was there before.
        torch.cuda.synchronize()
        time.sleep(THREAD_DELAY_S)
        out.copy_(right)

    threading.Thread(target=work).start()
    return out


def _backward_on_default_stream(
    q: Any, k: Any, v: Any, softmax_scale: float, out: Any, dout: Any
) -> tuple[Any, Any, Any]:
    import torch

    with torch.cuda.stream(torch.cuda.default_stream()):
        probs = (torch.einsum("bqhd,bkhd->bhqk", q, k) * softmax_scale).softmax(dim=-1)
        dprobs = torch.einsum("bqhd,bkhd->bhqk", dout, v)
        dscores = probs * (dprobs - (dout * out).sum(dim=-1).transpose(1, 2)[..., None]) * softmax_scale
        dq = torch.einsum("bhqk,bkhd->bqhd", dscores, k)
        dk = torch.einsum("bhqk,bqhd->bkhd", dscores, q)
        dv = torch.einsum("bhqk,bqhd->bkhd", probs, dout)
    torch.cuda.default_stream().synchronize()
    return dq, dk, dv


@register(arrays="torch", arithmetic="eager", backward=_backward_on_default_stream)
def torch_backward_on_default_stream(q: Any, k: Any, v: Any, softmax_scale: float) -> Any:
    """The forward keeps to the current stream, the backward does not."""
    return _torch_attention(q, k, v, softmax_scale)


def _cupy_attention(q: Any, k: Any, v: Any, softmax_scale: float) -> Any:
    import cupy

    scores = cupy.einsum("bqhd,bkhd->bhqk", q, k) * cupy.float32(softmax_scale)
    weights = cupy.exp(scores - scores.max(axis=-1, keepdims=True))
    return cupy.einsum("bhqk,bkhd->bqhd", weights / weights.sum(axis=-1, keepdims=True), v)


@register(arrays="cupy", arithmetic="eager")
def cupy_honest(q: Any, k: Any, v: Any, softmax_scale: float) -> Any:
    """On the current stream."""
    return _cupy_attention(q, k, v, softmax_scale)


@register(arrays="cupy", arithmetic="eager")
def cupy_on_null_stream(q: Any, k: Any, v: Any, softmax_scale: float) -> Any:
    """On the legacy default stream, whatever is current."""
    import cupy

    with cupy.cuda.Stream.null as null:
        out = _cupy_attention(q, k, v, softmax_scale)
        null.synchronize()
    return out


@register(arrays="cupy", arithmetic="eager")
def cupy_deferred(q: Any, k: Any, v: Any, softmax_scale: float, out: Any) -> None:
    """Fills the given buffer on a side stream that nothing waits for."""
    import cupy

    side = cupy.cuda.Stream(non_blocking=True)
    side.wait_event(cupy.cuda.get_current_stream().record())
    with side:
        CupyStreams().delay()
        out[...] = _cupy_attention(q, k, v, softmax_scale)


@register(arrays="torch", arithmetic="eager")
def torch_filling(q: Any, k: Any, v: Any, softmax_scale: float, out: Any) -> None:
    """Fills the given buffer."""
    out.copy_(_torch_attention(q, k, v, softmax_scale))


@register(arrays="cupy", arithmetic="eager")
def cupy_filling(q: Any, k: Any, v: Any, softmax_scale: float, out: Any) -> None:
    """Fills the given buffer."""
    out[...] = _cupy_attention(q, k, v, softmax_scale)


@register(arrays="torch", arithmetic="eager")
def torch_filling_partly(q: Any, k: Any, v: Any, softmax_scale: float, out: Any) -> None:
    """Leaves the last row as it was."""
    out[:, :-1] = _torch_attention(q, k, v, softmax_scale)[:, :-1]


@register(arrays="torch", arithmetic="eager")
def torch_overrunning(q: Any, k: Any, v: Any, softmax_scale: float, out: Any) -> None:
    """Writes one element beyond the end of the buffer."""
    out.copy_(_torch_attention(q, k, v, softmax_scale))
    out.as_strided((out.numel() + 1,), (1,))[-1] = 0.0


class Misplaced:
    """An honest adapter whose launches go to the legacy default stream of its library."""

    def __init__(self, honest: Candidate, stream: Callable[[], AbstractContextManager[Any]]) -> None:
        self.name = f"{honest.name} on the default stream"
        self.contract = honest.contract
        self._honest: Any = honest
        self._stream = stream

    def unavailable(self) -> str | None:
        """As the honest one."""
        reason: str | None = self._honest.unavailable()
        return reason

    @on_torch_streams
    def run(self, call: Call) -> Reply:
        with self._stream():
            reply: Reply = type(self._honest).run.__wrapped__(self._honest, call)
        return reply


class MisplacedKernel(CudaKernel):
    """A kernel of this project, launched on CuPy's null stream."""

    def _run(self, call: Call, machine: Any) -> Reply:
        import cupy

        with cupy.cuda.Stream.null as null:
            reply = super()._run(call, machine)
            null.synchronize()
        return reply


def torch_misplaced(name: str) -> Misplaced:
    """A torch adapter of that name under torch's default stream."""
    import torch

    return Misplaced(load(name), lambda: torch.cuda.stream(torch.cuda.default_stream()))
