"""NumPy mirrors of the structs in cuda/params.cuh, and how an array becomes a view in them.

Field order and names are those of the header; a test compares every offset with the compiler's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kernels.backend import Array, Backend

_POINTER, _LONG, _INT, _UINT, _FLOAT = "u8", "i8", "i4", "u4", "f4"


def _struct(*fields: tuple[str, Any]) -> np.dtype[Any]:
    return np.dtype(list(fields), align=True)


def _each(names: str, kind: Any) -> tuple[tuple[str, Any], ...]:
    return tuple((name, kind) for name in names.split())


TENSOR_AXES = ("batch", "seq", "head", "dim")
PAIR_AXES = ("batch", "head", "row", "col")
ROW_AXES = ("batch", "head", "row")

TENSOR_VIEW = _struct(("data", _POINTER), *((axis, _LONG) for axis in TENSOR_AXES))
PAIR_VIEW = _struct(("data", _POINTER), *((axis, _LONG) for axis in PAIR_AXES))
ROW_VIEW = _struct(("data", _POINTER), *((axis, _LONG) for axis in ROW_AXES))

PROBLEM = _struct(
    *_each("q k v", TENSOR_VIEW),
    *_each("keep_mask block_mask bias", PAIR_VIEW),
    *_each("cu_seqlens_q cu_seqlens_k seqlens_q seqlens_k alibi_slopes sink", _POINTER),
    *_each("alibi_batch alibi_head sink_head", _LONG),
    *_each("batch nheads nheads_kv head_dim head_dim_v seqlen_q seqlen_k", _INT),
    *_each("band_left band_right bottom_right block_rows block_cols bias_is_fp32 sink_is_fp32", _INT),
    *_each("softmax_scale softcap dropout_scale", _FLOAT),
    *_each("drop_below seed_low seed_high dropout_offset", _UINT),
)

FORWARD_PARAMS = _struct(
    ("problem", PROBLEM),
    ("out", TENSOR_VIEW),
    ("lse", ROW_VIEW),
    *_each("scores probs", _POINTER),
)

BACKWARD_PARAMS = _struct(
    ("problem", PROBLEM),
    *_each("out dout dq dk dv", TENSOR_VIEW),
    *_each("lse dlse delta", ROW_VIEW),
    ("dbias", PAIR_VIEW),
    *_each("bias_batch bias_heads bias_rows bias_cols", _INT),
    ("dsink", _POINTER),
    ("dsink_head", _LONG),
    *_each("scores probs dprobs dscores", _POINTER),
)

DROPOUT_MASK_PARAMS = _struct(
    ("keep", PAIR_VIEW),
    *_each("nheads seqlen_q seqlen_k", _INT),
    *_each("drop_below seed_low seed_high dropout_offset", _UINT),
)

STRUCTS: dict[str, np.dtype[Any]] = {
    "TensorView": TENSOR_VIEW,
    "PairView": PAIR_VIEW,
    "RowView": ROW_VIEW,
    "Problem": PROBLEM,
    "ForwardParams": FORWARD_PARAMS,
    "BackwardParams": BACKWARD_PARAMS,
    "DropoutMaskParams": DROPOUT_MASK_PARAMS,
}
"""Name in the header -> mirror."""


def element_strides(array: Array) -> tuple[int, ...]:
    """Strides in elements; 0 along axes of size 1, so that a size-1 axis is a broadcast axis."""
    step = array.dtype.itemsize
    return tuple(0 if size == 1 else stride // step for size, stride in zip(array.shape, array.strides, strict=True))


def fill_view(field: Any, backend: Backend, array: Array | None, axes: Sequence[str]) -> None:
    """Point a view at an array whose last axes are the last of `axes`; missing leading axes get stride 0.

    None leaves the view null.
    """
    if array is None:
        return
    field["data"] = backend.address(array)
    strides = element_strides(array)
    for axis, stride in zip(axes[len(axes) - len(strides) :], strides, strict=True):
        field[axis] = stride
