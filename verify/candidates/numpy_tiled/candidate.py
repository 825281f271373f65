"""The emulated kernel as a candidate: runs the sequences of a call and writes its outputs in the caller's shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verify.candidate import Array, Call, RefusedError, Reply, Route, output_shapes
from verify.candidates.numpy_tiled.backward import Gradients, backward
from verify.candidates.numpy_tiled.forward import ForwardState, forward
from verify.candidates.numpy_tiled.rounding import F32
from verify.candidates.numpy_tiled.scheme import Scheme
from verify.candidates.numpy_tiled.sequences import (
    Sequences,
    key_index,
    lse_index,
    query_rows,
    rows_first,
    score_index,
    sequences,
)
from verify.contract import OPTIONAL_FEATURES, OUTPUT_NAMES, Capabilities, Contract
from verify.dtypes import float_format
from verify.problem import EVERY_LAYOUT

CAPABILITIES = Capabilities(
    features=OPTIONAL_FEATURES,
    layouts=frozenset(EVERY_LAYOUT),
    max_head_dim=1024,
    outputs=frozenset(OUTPUT_NAMES),
    takes_dlse=True,
    nan_behind_mask=True,
)


class NumpyTiled:
    """Tiled online-softmax attention in NumPy with selectable rounding points; its contract is those points."""

    def __init__(
        self, schemes: Mapping[str, Scheme], name: str = "numpy_tiled", *, split_counts: tuple[int, ...] = ()
    ) -> None:
        self.name = name
        self.schemes = dict(schemes)
        arithmetic = {dtype: scheme.arithmetic for dtype, scheme in self.schemes.items()}
        capabilities = replace(CAPABILITIES, dtypes=frozenset(self.schemes), split_counts=split_counts)
        self.contract = Contract(capabilities=capabilities, arithmetic=arithmetic)

    def unavailable(self) -> str | None:
        """None: NumPy is always there."""
        return None

    def run(self, call: Call) -> Reply:
        """Outputs of the call; the inputs are only read.

        Raises
        ------
        RefusedError
            The problem is not declared.
        """
        able = self.contract.capabilities
        reason = able.refusal(call.problem) or able.splits_refusal(call.splits)
        if reason is not None:
            raise RefusedError(reason)
        scheme = self.schemes[call.problem.dtype]
        outputs = _Outputs(call)
        # Overflow, underflow and NaN are results here, to be judged by the caller, not events to warn about.
        with np.errstate(all="ignore"):
            for part in sequences(call):
                state = forward(part, scheme, call.splits or 1)
                outputs.add_forward(part, state)
                if call.backward:
                    outputs.add_gradients(part, backward(part, state, scheme))
            rounded = outputs.rounded(scheme)
        a = scheme.arithmetic
        details = {"tile_q": str(a.tile_q), "tile_k": str(a.tile_k), "key_order": scheme.key_order}
        return Reply(outputs=rounded, route=Route(backend=self.name, details=details))


class _Outputs:
    """fp32 buffers in the caller's shapes; sequences are added one group after the other and rounded once."""

    def __init__(self, call: Call) -> None:
        self._call = call
        names = {"out", "lse"} | ({"dq", "dk", "dv", "dbias", "dsink"} if call.backward else set())
        shapes = output_shapes(call.problem, call.arrays)
        self._buffers: dict[str, F32] = {
            name: np.zeros(shape, dtype=np.float32) for name, shape in shapes.items() if name in names
        }

    def add_forward(self, part: Sequences, state: ForwardState) -> None:
        p, buffers = part.problem, self._buffers
        buffers["out"][query_rows(p, part.batch)] = rows_first(state.out, p.is_ragged)
        buffers["lse"][lse_index(p, part.batch)] = state.lse[0] if p.is_ragged else state.lse

    def add_gradients(self, part: Sequences, grads: Gradients) -> None:
        p, buffers = part.problem, self._buffers
        buffers["dq"][query_rows(p, part.batch)] = rows_first(grads.q, p.is_ragged)
        where = key_index(self._call, part.batch, part.seqlen_k)
        packed = p.is_ragged or p.page_size > 0
        # Sequences may share pages, hence addition instead of assignment.
        np.add.at(buffers["dk"], where, rows_first(grads.k, packed))
        np.add.at(buffers["dv"], where, rows_first(grads.v, packed))
        if grads.bias is not None:
            buffers["dbias"][score_index(buffers["dbias"], part.batch, part.seqlen_q, part.seqlen_k)] += grads.bias
        if grads.sink is not None:
            buffers["dsink"] += grads.sink

    def rounded(self, scheme: Scheme) -> dict[str, Array]:
        """The outputs in their formats."""
        formats = {"out": scheme.out_format, "lse": scheme.arithmetic.lse_dtype, "dsink": "fp32"}
        return {name: _cast(values, formats.get(name, scheme.grad_format)) for name, values in self._buffers.items()}


def _cast(values: F32, name: str) -> NDArray[Any]:
    return values.astype(float_format(name).numpy_dtype)
