"""A declared function as a candidate: offers a call's arguments by name and gathers what comes back.

Converts layouts at the edge; computes nothing.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from verify.candidate import Call, KernelFaultError, RefusedError, Reply, Route, output_shapes
from verify.candidates.device_streams import run_probed
from verify.candidates.output_buffers import PREFILL_DETAIL, OutputBuffers
from verify.candidates.user.worlds import World, make_world, world_missing
from verify.dtypes import float_format
from verify.registration import GRADIENTS, Declaration, argument_names
from verify.registration.signature import FORWARD_BUFFERS
from verify.verdict import Status

_HEADED = ("q", "k", "v", "out", "dout", "dq", "dk", "dv")
"""Arrays whose axes 1 and 2 are seqlen and heads."""


class FunctionCandidate:
    """A function of a user, as its declaration describes it."""

    def __init__(self, declaration: Declaration) -> None:
        self.name = declaration.name
        self.contract = declaration.contract
        self._declared = declaration
        self._world: World | None = None

    def unavailable(self) -> str | None:
        """Why its array library cannot be used here, or None."""
        return world_missing(self._declared.arrays)

    def sources(self) -> tuple[Path, ...]:
        """The files that hold its functions."""
        functions = (self._declared.function, self._declared.backward)
        found = [inspect.getsourcefile(inspect.unwrap(function)) for function in functions if function is not None]
        return tuple(sorted({Path(path) for path in found if path is not None}))

    def run(self, call: Call) -> Reply:
        """Call the function, and its backward where gradients are asked for."""
        reason = self.contract.capabilities.refusal(call.problem)
        if reason is None and call.backward and not self._declared.backward_returns:
            reason = "no backward is declared"
        reason = reason or self.contract.capabilities.splits_refusal(call.splits)
        if reason is not None:
            raise RefusedError(reason)
        if self._world is None:
            self._world = make_world(self._declared.arrays)
        world = self._world

        def exchange() -> Reply:
            asked = _Exchange(self._declared, call, world)
            outputs = asked.outputs()
            details = world.facts() | ({PREFILL_DETAIL: call.prefill} if asked.fills_buffers else {})
            return Reply(outputs=outputs, route=Route(backend=self.name, details=details))

        return run_probed(call, world.streams() if call.probe_order else None, exchange)


class _Exchange:
    """One call of one function."""

    def __init__(self, declared: Declaration, call: Call, world: World) -> None:
        self._declared = declared
        self._call = call
        self._world = world
        arrays = call.arrays
        if declared.contiguous:
            arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        brought = world.bring(arrays)
        self._given = {name: self._turned(name, value) for name, value in brought.items()} | _numbers(call)
        self._shapes = output_shapes(call.problem, call.arrays)
        self._buffers = OutputBuffers(world.allocate, world.fetch, call.prefill)

    @property
    def fills_buffers(self) -> bool:
        """Whether its outputs are buffers that the harness makes."""
        taken = argument_names(self._declared.function).values()
        return any(name in taken for name in FORWARD_BUFFERS)

    def outputs(self) -> dict[str, Any]:
        """Results by name, as NumPy arrays in the harness's layout."""
        declared = self._declared
        wanted = [name.removeprefix("d") for name in declared.backward_returns] if self._call.backward else []
        if declared.autograd:
            for name in wanted:
                if name in self._given:
                    self._given[name].requires_grad_()
        results = self._invoke(declared.function, declared.returns)
        if self._call.backward:
            results |= self._autograd(results) if declared.autograd else self._explicit(results)
        outputs = {name: self._world.fetch(self._turned(name, value)) for name, value in results.items()}
        self._buffers.check()
        return outputs

    def _explicit(self, forward: Mapping[str, Any]) -> dict[str, Any]:
        assert self._declared.backward is not None, "run refuses a backward that is not declared"
        self._given |= {name: self._kept(name, value) for name, value in forward.items()}
        owed = tuple(name for name in self._declared.backward_returns if name in self._shapes)
        return self._invoke(self._declared.backward, owed, backward=True)

    def _autograd(self, forward: Mapping[str, Any]) -> dict[str, Any]:
        import torch

        roots, seeds = [forward["out"]], [self._given["dout"]]
        if self._call.with_dlse and "lse" in forward:
            roots.append(forward["lse"])
            seeds.append(self._given["dlse"])
        if not isinstance(roots[0], torch.Tensor) or not roots[0].requires_grad:
            raise KernelFaultError(Status.LAUNCH_ERROR, "out carries no autograd graph: expected a differentiable out")
        names = [name for name in self._declared.backward_returns if name.removeprefix("d") in self._given]
        leaves = [self._given[name.removeprefix("d")] for name in names]
        gradients = torch.autograd.grad(roots, leaves, seeds, materialize_grads=True)
        return dict(zip(names, gradients, strict=True))

    def _invoke(
        self, function: Callable[..., Any], names: tuple[str, ...], *, backward: bool = False
    ) -> dict[str, Any]:
        taken = argument_names(function, backward=backward)
        filled = GRADIENTS if backward else ("out", "lse")
        buffers = {name: self._buffer(name) for name in taken.values() if name in filled and name in self._shapes}
        parameters = inspect.signature(function).parameters
        arguments: dict[str, Any] = {}
        for parameter, meaning in taken.items():
            if meaning in buffers:
                arguments[parameter] = buffers[meaning]
            elif meaning in self._given:
                arguments[parameter] = self._given[meaning]
            elif parameters[parameter].default is inspect.Parameter.empty:
                arguments[parameter] = None
        returned = function(**arguments)
        return buffers if buffers else _named(returned, names)

    def _buffer(self, name: str) -> Any:
        p, shape = self._call.problem, self._shapes[name]
        arithmetic = self._declared.contract.arithmetic[p.dtype]
        by_name = {"lse": arithmetic.lse_dtype, "out": arithmetic.out_dtype, "dsink": "fp32"}
        dtype = by_name.get(name, arithmetic.grad_dtype) or p.dtype
        if self._declared.layout == "bhsd" and name in _HEADED:
            shape = (shape[0], shape[2], shape[1], shape[3])
        itemsize = float_format(dtype).numpy_dtype.itemsize
        return self._world.shaped(self._buffers.make(name, math.prod(shape) * itemsize), shape, dtype)

    def _turned(self, name: str, value: Any) -> Any:
        """Between the harness's layout and the function's: the exchange is its own inverse."""
        return self._world.swapped(value) if self._declared.layout == "bhsd" and name in _HEADED else value

    @staticmethod
    def _kept(name: str, value: Any) -> Any:
        detach = getattr(value, "detach", None)
        return value if detach is None else detach()


def _numbers(call: Call) -> dict[str, Any]:
    """Arguments that are no arrays; what the problem does not have is left to the function's own default."""
    p = call.problem
    values: dict[str, Any] = {
        "softmax_scale": p.softmax_scale,
        "causal": p.causal,
        "alignment": p.alignment,
        "softcap": p.softcap,
        "window_size": tuple(-1 if side is None else side for side in p.window or (None, None)),
        "max_seqlen_q": p.seqlen_q,
        "max_seqlen_k": p.seqlen_k,
        "seed": call.seed,
    }
    if call.splits:
        values["num_splits"] = call.splits
    if p.dropout_p > 0:
        values["dropout_p"] = p.dropout_p
    if p.pattern == "block_sparse":
        values["block_size"] = p.block_size
    return values


def _named(returned: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """Results by name of a function that returns one array, a tuple in the declared order, or a dict."""
    if isinstance(returned, Mapping):
        return dict(returned)
    values = tuple(returned) if isinstance(returned, tuple | list) else (returned,)
    if len(values) != len(names):
        message = f"returned {len(values)} values: expected {len(names)} ({', '.join(names)})"
        raise KernelFaultError(Status.SHAPE, message)
    return dict(zip(names, values, strict=True))
