"""Runs the emulated kernel and the bounds on small problems: what the tests of the bounds share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verify.candidate import Call
from verify.candidates.numpy_tiled import NumpyTiled, Scheme, default_scheme, with_arithmetic
from verify.contract import Arithmetic
from verify.dtypes import float_format
from verify.oracle import reference_outputs
from verify.problem import AttentionProblem, default_scale
from verify.recipes.repeats import PATTERNS
from verify.tolerance import Bound, derive_bounds

Arrays = dict[str, NDArray[Any]]


def problem(**fields: Any) -> AttentionProblem:
    """A small problem; head_dim_v and the scale follow head_dim unless given."""
    known: dict[str, Any] = {"seqlen_q": 33, "seqlen_k": 48, "nheads": 2, "head_dim": 24, "dtype": "fp16"} | fields
    known.setdefault("nheads_kv", known["nheads"])
    known.setdefault("head_dim_v", known["head_dim"])
    known.setdefault("softmax_scale", default_scale(known["head_dim"]))
    return AttentionProblem(**known)


def normal_arrays(p: AttentionProblem, seed: int = 0) -> Arrays:
    """q, k, v, dout ~ N(0, 1) in the storage dtype, and dlse, sink, bias, dropout_keep where the problem has them."""
    rng = np.random.default_rng(seed)
    storage = float_format(p.dtype).numpy_dtype
    rows, keys = (p.batch, p.seqlen_q, p.nheads), (p.batch, p.seqlen_k, p.nheads_kv)
    shapes = {"q": (*rows, p.head_dim), "k": (*keys, p.head_dim), "v": (*keys, p.head_dim_v)}
    arrays: Arrays = {
        name: rng.standard_normal(shape).astype(storage)
        for name, shape in (shapes | {"dout": (*rows, p.head_dim_v)}).items()
    }
    arrays["dlse"] = rng.standard_normal((p.batch, p.nheads, p.seqlen_q)).astype(np.float32)
    plane = (p.batch, p.nheads, p.seqlen_q, p.seqlen_k)
    if p.bias == "additive":
        shared = tuple(1 if one else n for one, n in zip(p.bias_broadcast, plane[:2], strict=True))
        arrays["bias"] = rng.standard_normal((*shared, *plane[2:])).astype(storage)
    if p.bias == "alibi":
        arrays["alibi_slopes"] = (0.5 ** np.arange(1, p.nheads + 1)).astype(np.float32)
    if p.sink:
        arrays["sink"] = rng.standard_normal(p.nheads).astype(np.float32)
    if p.dropout_p:
        arrays["dropout_keep"] = rng.random(plane) >= p.dropout_p
    return arrays


def patterned_arrays(p: AttentionProblem, seed: int = 0, **patterns: str) -> Arrays:
    """`normal_arrays` with q, k, v or dout in one of the patterns of the recipe `repeats`."""
    arrays = normal_arrays(p, seed)
    for name, pattern in patterns.items():
        random = np.random.default_rng([seed, len(name), ord(name[0])])
        made = PATTERNS[pattern](arrays[name].astype(np.float64), random)
        arrays[name] = made.astype(arrays[name].dtype)
    return arrays


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Outputs of one emulated run with their reference and bounds."""

    outputs: Mapping[str, NDArray[np.float64]]
    reference: Mapping[str, NDArray[np.float64]]
    bounds: Mapping[str, Bound]

    def error(self, name: str) -> NDArray[np.float64]:
        """|got - reference|; 0 where both are the same infinity."""
        got, expected = self.outputs[name], self.reference[name]
        with np.errstate(invalid="ignore"):
            return np.where(got == expected, 0.0, np.abs(got - expected))

    def ratio(self, name: str) -> float:
        """Largest error over bound."""
        error = self.error(name)
        with np.errstate(divide="ignore", invalid="ignore"):
            return float(np.where(error == 0, 0.0, error / self.bounds[name].total).max(initial=0.0))

    def worst(self) -> float:
        """Largest ratio over all outputs."""
        return max(self.ratio(name) for name in self.bounds)


def bounds_of(
    p: AttentionProblem, arrays: Arrays, arithmetic: Arithmetic | None = None, **options: Any
) -> Mapping[str, Bound]:
    """Bounds of a default (or given) arithmetic, backward included."""
    arithmetic = arithmetic or default_scheme(p.dtype).arithmetic
    reference = reference_outputs(p, arrays, backward=True, with_dlse=options.get("with_dlse", False)).outputs
    return derive_bounds(p, arrays, reference, arithmetic, backward=True, **options)


def judge(
    p: AttentionProblem,
    arrays: Arrays,
    *,
    scheme: Scheme | None = None,
    declared: Arithmetic | None = None,
    with_dlse: bool = False,
    **changes: Any,
) -> Judged:
    """Run a scheme (the default one with changed arithmetic) and bound it by what it declares, or by `declared`."""
    scheme = with_arithmetic(scheme or default_scheme(p.dtype), **changes)
    reply = NumpyTiled({p.dtype: scheme}).run(Call(problem=p, arrays=arrays, backward=True, with_dlse=with_dlse))
    return Judged(
        outputs={name: array.astype(np.float64) for name, array in reply.outputs.items()},
        reference=reference_outputs(p, arrays, backward=True, with_dlse=with_dlse).outputs,
        bounds=bounds_of(p, arrays, declared or scheme.arithmetic, with_dlse=with_dlse),
    )
