"""FlashInfer on CUDA: single-request prefill by its two kernels, and decode over a paged KV cache. Forward with lse.

Its lse is in base 2 and (rows, heads); it is converted here in fp64 and rounded once.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verify.candidate import Array, Call, RefusedError, Reply, Route, contiguous
from verify.candidates.cuda_contracts import HALF, TANH_APPROX_ULP, fused_contract
from verify.candidates.torch_device import gpu_missing, on_torch_streams, to_device, to_host
from verify.contract import Arithmetic, Capabilities, Contract

_FORWARD = frozenset({"out", "lse"})
_PREFILL = partial(
    fused_contract,
    frozenset({"causal", "softcap", "gqa"}),
    outputs=_FORWARD,
    max_head_dim=128,
    head_dim_multiple=64,
    deterministic=True,
    fully_masked_rows=False,
)
_FA2 = _PREFILL(tile_k=16, sum_rounded_probs=True)
"""prefill.cuh: the row sum is a tensor-core product of the converted P (m16k16_rowsum_f16f16f32)."""
_FA3 = _PREFILL()
"""hopper/attention_updater.cuh: the row sum is taken in fp32 before P is converted."""
# log2 and lse in base 2 are rounded before the conversion: counted with the logarithm.
PREFILL = {
    backend: replace(
        contract,
        arithmetic={storage: replace(contract.arithmetic[storage], log_ulp=4.0) for storage in HALF},
    )
    for backend, contract in (("fa2", _FA2), ("fa3", _FA3))
}
DECODE = Contract(
    capabilities=Capabilities(
        dtypes=frozenset(HALF),
        features=frozenset({"causal", "softcap", "gqa", "paged", "lengths"}),
        layouts=frozenset({"bshd"}),
        max_head_dim=128,
        head_dim_multiple=64,
        backward=False,
        outputs=_FORWARD,
        empty=False,
        fully_masked_rows=False,
    ),
    arithmetic=dict.fromkeys(
        HALF, Arithmetic(scale_roundings=4, exp_ulp=2.0, tanh_ulp=TANH_APPROX_ULP, log_ulp=4.0, tile_k=2)
    ),
)
"""decode.cuh on CUDA cores: everything in fp32; at least two keys between two rescalings (compute_qk, tile_size).
K and V share one set of strides, so that layouts with gaps of their own are out. A row without keys keeps the initial
maximum, which is -5e4 and not -inf (math.cuh): out is 0, lse finite."""
WORKSPACE_BYTES = 128 << 20
"""What the library's documentation recommends for its split-k scratch."""
GROUPS = (1, 2, 3, 4, 8)
"""Query heads a key head that the decode kernel is compiled for (utils.cuh, DISPATCH_GQA_GROUP_SIZE)."""


class FlashInfer:
    """What the two candidates share."""

    def __init__(self, name: str, contract: Contract) -> None:
        self.name = name
        self.contract = contract

    def unavailable(self) -> str | None:
        """Missing package or device, or None."""
        missing = find_spec("flashinfer") is None
        return "flashinfer not installed (pip install flashinfer-python)" if missing else gpu_missing()

    def _accept(self, call: Call) -> None:
        reason = self.contract.capabilities.refusal(call.problem)
        if reason is None and call.backward:
            reason = "FlashInfer has no backward"
        if reason is not None:
            raise RefusedError(reason)


class FlashInferPrefill(FlashInfer):
    """flashinfer.single_prefill_with_kv_cache with one kernel forced, one sequence of the batch after another."""

    def __init__(self, name: str, backend: str) -> None:
        super().__init__(name, PREFILL[backend])
        self._backend = backend

    @on_torch_streams
    def run(self, call: Call) -> Reply:
        """out and lse of the call."""
        self._accept(call)
        import flashinfer
        import torch

        p = call.problem
        q, k, v = (to_device(call.arrays[name]) for name in ("q", "k", "v"))
        pairs = [
            flashinfer.single_prefill_with_kv_cache(
                q[sequence],
                k[sequence],
                v[sequence],
                causal=p.causal,
                kv_layout="NHD",
                sm_scale=p.softmax_scale,
                logits_soft_cap=p.softcap or None,
                backend=self._backend,
                return_lse=True,
            )
            for sequence in range(p.batch)
        ]
        out = to_host(torch.stack([pair[0] for pair in pairs]))
        base_2 = to_host(torch.stack([pair[1] for pair in pairs]))
        return Reply(
            outputs={"out": contiguous(out), "lse": natural_lse(base_2)},
            route=Route(backend=f"single_prefill {self._backend}", details=_details()),
        )


class FlashInferDecode(FlashInfer):
    """flashinfer.BatchDecodeWithPagedKVCacheWrapper.

    Each query row is a request of its own that sees the keys up to its diagonal; a contiguous sequence is one page.
    """

    def __init__(self) -> None:
        super().__init__("flashinfer_decode", DECODE)

    @on_torch_streams
    def run(self, call: Call) -> Reply:
        """out and lse of the call."""
        self._accept(call)
        import flashinfer
        import torch

        p = call.problem
        if p.group not in GROUPS:
            raise RefusedError(f"Unsupported group_size: {p.group}")
        q, k, v = (to_device(call.arrays[name]) for name in ("q", "k", "v"))
        counts, indptr, indices, last = requests(call)
        workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=q.device)
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD")
        wrapper.plan(
            *(torch.from_numpy(array) for array in (indptr, indices, last)),
            num_qo_heads=p.nheads,
            num_kv_heads=p.nheads_kv,
            head_dim=p.head_dim,
            page_size=k.shape[1],
            logits_soft_cap=p.softcap or None,
            q_data_type=q.dtype,
            sm_scale=p.softmax_scale,
            non_blocking=False,
        )
        out, lse = wrapper.run(q.reshape(-1, p.nheads, p.head_dim), (k, v), return_lse=True)
        shape = (p.batch, p.seqlen_q, p.nheads)
        base_2 = to_host(lse).reshape(shape)
        details = _details() | {"requests": str(len(counts))}
        return Reply(
            outputs={"out": contiguous(to_host(out).reshape(*shape, p.head_dim)), "lse": natural_lse(base_2)},
            route=Route(backend="batch_decode", details=details),
        )


def requests(call: Call) -> tuple[NDArray[np.int32], ...]:
    """(visible keys of each row, page offsets, pages, keys on the last page) of the rows of the batch, int32."""
    p = call.problem
    size = p.page_size or p.seqlen_k
    counts, pages = [], []
    for sequence in range(p.batch):
        keys = p.lengths(sequence)[1]
        table = call.arrays["page_table"][sequence] if p.page_size else np.array([sequence])
        for row in range(p.seqlen_q):
            seen = max(0, keys - p.seqlen_q + row + 1) if p.causal else keys
            counts.append(seen)
            pages.append(table[: -(-seen // size)])
    visible = np.array(counts, dtype=np.int32)
    used = -(-visible // size)
    indptr = np.concatenate([[0], np.cumsum(used)]).astype(np.int32)
    last = np.where(visible > 0, visible - (used - 1) * size, 0).astype(np.int32)
    return visible, indptr, np.concatenate(pages).astype(np.int32), last


def natural_lse(base_2: Array) -> Array:
    """lse (batch, rows, heads) in base 2 as (batch, heads, rows) in base e."""
    natural: Array = (base_2.astype(np.float64) * math.log(2.0)).astype(np.float32)
    return contiguous(natural.swapaxes(1, 2))


def _details() -> dict[str, Any]:
    import flashinfer
    import torch

    return {"flashinfer": str(flashinfer.__version__), "device": torch.cuda.get_device_name()}


def build_fa2() -> FlashInferPrefill:
    """FlashInfer's prefill by its kernels for sm_80 and later."""
    return FlashInferPrefill("flashinfer_prefill", "fa2")


def build_fa3() -> FlashInferPrefill:
    """FlashInfer's prefill by its Hopper kernels."""
    return FlashInferPrefill("flashinfer_prefill_fa3", "fa3")


def build_decode() -> FlashInferDecode:
    """FlashInfer's decode."""
    return FlashInferDecode()
