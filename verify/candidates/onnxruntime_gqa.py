"""ONNX Runtime's GroupQueryAttention (com.microsoft) on the CPU: causal, with a KV cache; forward alone, no lse.

Read from onnxruntime/contrib_ops/cpu/bert/gqa_attention_base.h; version 1.32 is the one that was tried. The first
seqlen_k - seqlen_q keys are handed over as the cache (past_key, past_value), the others as the new ones; with valid
lengths each sequence is divided at its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from verify.candidate import Array, Call, RefusedError, Reply, Route, contiguous
from verify.candidates.masks import heads_first_copy, keep_mask
from verify.candidates.onnxruntime_attention import missing_packages, open_session
from verify.contract import Arithmetic, Capabilities, Contract

DOMAIN, OPSET = "com.microsoft", 1
_INPUTS = ("query", "key", "value", "past_key", "past_value", "seqlens_k", "total_sequence_length")
_UNUSED = ("", "", "")
"""cos_cache, sin_cache, position_ids: rotary embedding."""
_FURTHER = ("attention_bias", "head_sink")
_FEATURES = frozenset(
    {"causal", "window", "boolean", "block_sparse", "bias", "bias_minus_infinity", "softcap", "sink", "gqa", "lengths"}
)


def _contract(dtype: str) -> Contract:
    """S, the softmax and P V in fp32, fp16 inputs widened first; the scale is the GEMM's alpha. The exponential is
    MLAS's polynomial (2 ulp), and P is multiplied by the reciprocal of the sum.
    """
    arithmetic = Arithmetic(products_exact=dtype != "fp32", exp_ulp=4.0)
    return Contract(
        capabilities=Capabilities(
            dtypes=frozenset({dtype}),
            # head_sink has the dtype of the query, a sink here is fp32: in fp16 it would be another sink.
            features=_FEATURES if dtype == "fp32" else _FEATURES - {"sink"},
            required=frozenset({"causal"}),
            max_head_dim=512,
            head_dim_multiple=8,
            backward=False,
            outputs=frozenset({"out"}),
            empty=False,
            # The new keys are as many as the rows.
            more_rows_than_keys=False,
            # A row of -inf alone is NaN, but for the flash path.
            fully_masked_rows=False,
        ),
        arithmetic={dtype: arithmetic},
    )


class OnnxRuntimeGqa:
    """One session for each set of inputs and attributes."""

    def __init__(self, dtype: str) -> None:
        self.name = "onnxruntime_gqa" if dtype == "fp32" else f"onnxruntime_gqa_{dtype}"
        self.contract = _contract(dtype)
        self._sessions: dict[tuple[Any, ...], Any] = {}

    def unavailable(self) -> str | None:
        """Missing package, or None."""
        return missing_packages()

    def run(self, call: Call) -> Reply:
        """out of the call."""
        p = call.problem
        reason = self.contract.capabilities.refusal(p)
        if reason is None and call.backward:
            reason = "the operator has no gradient in ONNX Runtime's CPU package"
        if reason is not None:
            raise RefusedError(reason)
        import onnxruntime

        left = None if p.window is None else p.window[0]
        attributes = (
            ("num_heads", p.nheads),
            ("kv_num_heads", p.nheads_kv),
            ("scale", p.softmax_scale),
            ("softcap", p.softcap),
            # The row's own key counts too.
            ("local_window_size", -1 if left is None else left + 1),
        )
        # With a cache and more than one row the operator takes one sequence at a time.
        alone = p.seqlen_q > 1 and any(p.lengths(b)[1] > p.seqlen_q for b in range(p.batch))
        groups = [slice(b, b + 1) for b in range(p.batch)] if alone else [slice(None)]
        outs = [self._session(feeds, attributes).run(None, feeds)[0] for feeds in (_feeds(call, g) for g in groups)]
        out = np.concatenate(outs).reshape(p.batch, p.seqlen_q, p.nheads, p.head_dim_v)
        details = {"onnxruntime": onnxruntime.__version__, "device": "cpu"}
        return Reply(
            outputs={"out": contiguous(out)},
            route=Route(backend="CPUExecutionProvider GroupQueryAttention", details=details),
        )

    def _session(self, feeds: dict[str, Array], attributes: tuple[tuple[str, Any], ...]) -> Any:
        kinds = tuple((name, feed.dtype.name) for name, feed in feeds.items())
        key = (kinds, attributes)
        if key not in self._sessions:
            self._sessions[key] = _make_session(dict(kinds), dict(attributes))
        return self._sessions[key]


def _feeds(call: Call, sequences: slice) -> dict[str, Array]:
    """Inputs of the operator for some sequences of the batch."""
    p, arrays = call.problem, call.arrays
    q, k, v = (arrays[name][sequences] for name in ("q", "k", "v"))
    lengths = np.array([p.lengths(b)[1] for b in range(p.batch)], np.int32)[sequences]
    total = int(lengths.max())
    feeds = {"query": _packed(q), "key": _packed(_newest(k, lengths, p.seqlen_q))}
    feeds["value"] = _packed(_newest(v, lengths, p.seqlen_q))
    past = total - p.seqlen_q
    if past:
        feeds |= {"past_key": heads_first_copy(k[:, :past]), "past_value": heads_first_copy(v[:, :past])}
    feeds["seqlens_k"] = lengths - 1
    feeds["total_sequence_length"] = np.array(total, np.int32)
    bias = _bias(call)
    if bias is not None:
        feeds["attention_bias"] = contiguous((bias if bias.shape[0] == 1 else bias[sequences])[..., :total])
    if "sink" in arrays:
        feeds["head_sink"] = contiguous(arrays["sink"])
    return feeds


def _newest(array: Array, lengths: Array, rows: int) -> Array:
    """The last `rows` valid rows of each sequence: (batch, rows, heads, dim)."""
    return np.stack([one[length - rows : length] for one, length in zip(array, lengths, strict=True)])


def _bias(call: Call) -> Array | None:
    """Additive mask (batch|1, nheads|1, seqlen_q, seqlen_k): the bias, and -inf where a pattern hides a key."""
    keep, bias = keep_mask(call, causal=False, window=False), call.arrays.get("bias")
    if keep is None:
        return bias
    shown = call.arrays["q"].dtype.type(0) if bias is None else bias
    hidden: Array = np.where(keep, shown, shown.dtype.type(-np.inf))
    return hidden


def _packed(array: Array) -> Array:
    """(batch, rows, heads, dim) as a contiguous (batch, rows, heads * dim) array."""
    batch, rows, heads, dim = array.shape
    return contiguous(array).reshape(batch, rows, heads * dim)


def _make_session(kinds: dict[str, str], attributes: dict[str, Any]) -> Any:
    from onnx import helper

    names = [*_INPUTS, *_UNUSED, *_FURTHER]
    inputs = [name if name in kinds else "" for name in names]
    outputs = ("output", "present_key", "present_value")
    node = helper.make_node("GroupQueryAttention", inputs, outputs, domain=DOMAIN, **attributes)
    return open_session(node, kinds, dict.fromkeys(outputs, kinds["query"]), {DOMAIN: OPSET, "": 24})


def build_fp32() -> OnnxRuntimeGqa:
    """GroupQueryAttention on the CPU in fp32."""
    return OnnxRuntimeGqa("fp32")


def build_fp16() -> OnnxRuntimeGqa:
    """GroupQueryAttention on the CPU in fp16."""
    return OnnxRuntimeGqa("fp16")
