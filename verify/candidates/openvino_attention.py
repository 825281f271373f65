"""OpenVINO's ScaledDotProductAttention (opset 13) on the CPU device: forward alone, no lse, fp32.

Version 2026.4 is the one that was tried; inference precision is set to f32, because bf16 hardware would lower it.
"""

from __future__ import annotations

import functools
from importlib.util import find_spec
from typing import Any

import numpy as np

from verify.candidate import Array, Call, RefusedError, Reply, Route, contiguous
from verify.candidates.masks import MASKED, heads_first_copy, keep_mask
from verify.contract import Arithmetic, Capabilities, Contract

MODELS_KEPT = 32
"""Each compiled model holds about 11 memory mappings and 1.6 MB (measured, 2026.4): 6000 of them exhaust the 65530
mappings that Linux gives a process by default, and calls fail from then on."""

CONTRACT = Contract(
    capabilities=Capabilities(
        dtypes=frozenset({"fp32"}),
        features=MASKED | {"dv"},
        max_head_dim=512,
        backward=False,
        outputs=frozenset({"out"}),
        empty=False,
        # ScaledDotProductAttention-13 is a plain softmax over -inf: a row that sees no key is NaN.
        fully_masked_rows=False,
    ),
    # The scale multiplies q in oneDNN's path and the scores in the reference path: counted as the worse of the two.
    arithmetic={"fp32": Arithmetic(products_exact=False, exp_ulp=4.0, scale_on="q")},
)


class OpenVinoAttention:
    """One compiled model for each shape, scale and set of inputs."""

    def __init__(self) -> None:
        self.name = "openvino_attention"
        self.contract = CONTRACT

    def unavailable(self) -> str | None:
        """Missing package, or None."""
        return None if find_spec("openvino") is not None else "openvino not installed (pip install openvino)"

    def run(self, call: Call) -> Reply:
        """out of the call."""
        reason = self.contract.capabilities.refusal(call.problem)
        if reason is None and call.backward:
            reason = "the operator has no gradient"
        if reason is not None:
            raise RefusedError(reason)
        import openvino

        feeds = [heads_first_copy(call.arrays[name]) for name in ("q", "k", "v")]
        p = call.problem
        native = p.causal and p.seqlen_q == p.seqlen_k and p.window is None
        native = native and not {"mask", "block_mask", "bias"} & set(call.arrays)
        mask = None if native else _mask(call)
        if mask is not None:
            feeds.append(mask)
        model = compiled_model(tuple(feed.shape for feed in feeds), native, p.softmax_scale)
        out = np.array(model(feeds)[0])
        details = {"openvino": openvino.__version__, "device": "CPU", "precision": "f32"}
        return Reply(
            outputs={"out": contiguous(out.swapaxes(1, 2))},
            route=Route(backend="CPU ScaledDotProductAttention", details=details),
        )


def _mask(call: Call) -> Array | None:
    """Additive fp32 mask, -inf where hidden; None where every key is visible."""
    keep, bias = keep_mask(call), call.arrays.get("bias")
    if keep is None:
        return None if bias is None else contiguous(bias)
    return contiguous(np.where(keep, np.float32(0) if bias is None else bias, np.float32(-np.inf)).astype(np.float32))


@functools.lru_cache(maxsize=MODELS_KEPT)
def compiled_model(shapes: tuple[tuple[int, ...], ...], causal: bool, scale: float) -> Any:
    """The operator as a model of its own; shapes of q, k, v and, where there is one, the mask."""
    import openvino
    from openvino import opset13

    parameters = [opset13.parameter(shape, np.float32) for shape in shapes]
    constant = opset13.constant(np.float32(scale))
    zero = opset13.constant(np.float32(0))
    mask = parameters[3] if len(parameters) > 3 else zero
    node = opset13.scaled_dot_product_attention(*parameters[:3], mask, constant, causal=causal)
    model = openvino.Model([node], parameters, "attention")
    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1}
    return openvino.Core().compile_model(model, "CPU", settings)


def build() -> OpenVinoAttention:
    """OpenVINO on the CPU."""
    return OpenVinoAttention()
