"""The ONNX operator Attention (opset 24) as ONNX Runtime runs it on the CPU: forward alone, no lse.

Read from onnxruntime/core/providers/cpu/llm/attention.cc; version 1.32 is the one that was tried.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np

from verify.candidate import Array, Call, RefusedError, Reply, Route, contiguous
from verify.candidates.masks import MASKED, heads_first_copy, keep_mask
from verify.contract import Arithmetic, Capabilities, Contract

OPSET = 24
"""First opset with nonpad_kv_seqlen, which aligns the causal mask to the last valid key."""
_INPUTS = ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")
_ATTRIBUTES = ("scale", "softcap", "is_causal")
_Kinds = tuple[tuple[str, str], ...]


def _arithmetic(storage: str) -> Arithmetic:
    """Each product is one GEMM in fp32; in fp16 its result is stored, so S, P and out pass through fp16.

    The scale is the GEMM's alpha. MlasComputeSoftmax has a polynomial exponential good to 2 ulp and divides by
    multiplying with the reciprocal.
    """
    return Arithmetic(
        scores_dtype=storage,
        probs_normalised_dtype=storage,
        products_exact=storage != "fp32",
        exp_ulp=4.0,
    )


CONTRACT = Contract(
    capabilities=Capabilities(
        dtypes=frozenset({"fp32", "fp16"}),
        features=MASKED | {"softcap", "gqa", "lengths", "dv"},
        max_head_dim=512,
        backward=False,
        outputs=frozenset({"out"}),
        empty=False,
    ),
    arithmetic={storage: _arithmetic(storage) for storage in ("fp32", "fp16")},
)


class OnnxRuntimeAttention:
    """One session for each set of inputs and attributes."""

    def __init__(self) -> None:
        self.name = "onnxruntime_attention"
        self.contract = CONTRACT
        self._sessions: dict[tuple[Any, ...], Any] = {}

    def unavailable(self) -> str | None:
        """Missing package, or None."""
        return missing_packages()

    def run(self, call: Call) -> Reply:
        """out of the call."""
        reason = self.contract.capabilities.refusal(call.problem)
        if reason is None and call.backward:
            reason = "the operator has no gradient in ONNX Runtime's CPU package"
        if reason is not None:
            raise RefusedError(reason)
        import onnxruntime

        feeds, is_causal = _feeds(call)
        p = call.problem
        kinds = tuple((name, feed.dtype.name) for name, feed in feeds.items())
        session = self._session(kinds, (p.softmax_scale, p.softcap, int(is_causal)))
        try:
            (out,) = session.run(None, feeds)
        except onnxruntime.capi.onnxruntime_pybind11_state.RuntimeException as error:
            raise RefusedError(str(error).splitlines()[0]) from error
        details = {"onnxruntime": onnxruntime.__version__, "opset": str(OPSET), "device": "cpu"}
        return Reply(
            outputs={"out": contiguous(out.swapaxes(1, 2))},
            route=Route(backend="CPUExecutionProvider Attention", details=details),
        )

    def _session(self, kinds: _Kinds, attributes: tuple[Any, ...]) -> Any:
        key = (kinds, attributes)
        if key not in self._sessions:
            self._sessions[key] = _make_session(dict(kinds), dict(zip(_ATTRIBUTES, attributes, strict=True)))
        return self._sessions[key]


def _feeds(call: Call) -> tuple[dict[str, Array], bool]:
    """(inputs by name, whether the operator itself masks causally)."""
    p, arrays = call.problem, call.arrays
    feeds = {name: heads_first_copy(arrays[name.lower()]) for name in ("Q", "K", "V")}
    # The operator's causal mask is bottom-right, by each sequence's length, exactly when it is told the number of valid
    # keys, else top-left: with lengths a top-left mask is passed as data.
    is_causal = p.causal and (p.seqlens_k is None or p.alignment == "bottom_right")
    keep = keep_mask(call, causal=not is_causal)
    if "bias" in arrays:
        bias = arrays["bias"]
        feeds["attn_mask"] = contiguous(bias if keep is None else np.where(keep, bias, bias.dtype.type(-np.inf)))
    elif keep is not None:
        feeds["attn_mask"] = contiguous(np.broadcast_to(keep, (*keep.shape[:2], p.seqlen_q, p.seqlen_k)))
    if p.seqlens_k is not None:
        feeds["nonpad_kv_seqlen"] = np.asarray(arrays["seqlens_k"], np.int64)
    elif is_causal and p.alignment == "bottom_right" and p.seqlen_q != p.seqlen_k:
        feeds["nonpad_kv_seqlen"] = np.full(p.batch, p.seqlen_k, np.int64)
    return feeds, is_causal


def _make_session(kinds: dict[str, str], attributes: dict[str, Any]) -> Any:
    from onnx import helper

    inputs = [name if name in kinds else "" for name in _INPUTS]
    node = helper.make_node("Attention", inputs, ["Y"], name="attention", **attributes)
    return open_session(node, kinds, {"Y": kinds["Q"]}, {"": OPSET})


def missing_packages() -> str | None:
    """What keeps ONNX Runtime's operators from running here, or None."""
    missing = [name for name in ("onnxruntime", "onnx") if find_spec(name) is None]
    return f"{' and '.join(missing)} not installed (pip install onnxruntime onnx)" if missing else None


def open_session(node: Any, inputs: dict[str, str], outputs: dict[str, str], opsets: dict[str, int]) -> Any:
    """Session of a graph of one node on one thread of the CPU; inputs and outputs are NumPy dtypes by name."""
    import onnxruntime
    from onnx import TensorProto, helper

    types = {
        "float32": TensorProto.FLOAT,
        "float16": TensorProto.FLOAT16,
        "bool": TensorProto.BOOL,
        "int32": TensorProto.INT32,
        "int64": TensorProto.INT64,
    }
    declared, results = (
        [helper.make_tensor_value_info(name, types[kind], None) for name, kind in kinds.items()]
        for kinds in (inputs, outputs)
    )
    graph = helper.make_graph([node], "attention", declared, results)
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    # IR 11 is the one of opset 24's first release; newer ones are refused by older runtimes.
    model = helper.make_model(graph, opset_imports=imports, ir_version=11)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def build() -> OnnxRuntimeAttention:
    """ONNX Runtime's Attention on the CPU."""
    return OnnxRuntimeAttention()
