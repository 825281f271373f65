"""Inputs of a case -> reference outputs in fp64. Converts the harness's arrays to the reference's and back, no more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from references.attention import attention
from references.attention_backward import Gradients, attention_with_gradients
from references.options import AttentionExtras, AttentionOptions
from references.paged import add_to_pages, gather_pages
from references.varlen import attention_varlen, attention_varlen_backward
from verify.dense import attention_extras, attention_options
from verify.problem import AttentionProblem

Array = NDArray[Any]
Float64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """fp64 outputs in the logical shapes of the case."""

    outputs: Mapping[str, Float64] = field(default_factory=dict)
    """out, lse and, where asked for, dq, dk, dv, dbias, dsink."""


def reference_outputs(
    problem: AttentionProblem, arrays: Mapping[str, Array], *, backward: bool, with_dlse: bool = False
) -> Reference:
    """fp64 reference of a case.

    Parameters
    ----------
    problem, arrays
        As in `verify.candidate.Call`; values already rounded to the storage dtype are read exactly.
    backward
        Also compute the gradients for `dout` (and `dlse` when `with_dlse`), from the reference's own out and lse.

    Returns
    -------
    Reference
        fp64 outputs in logical shapes: ragged ones packed, gradients of paged keys and values in pages.
    """
    options = attention_options(problem)
    extras = replace(attention_extras(problem, arrays), seqlens_k=arrays.get("seqlens_k"))
    dlse = arrays["dlse"] if with_dlse else None
    if problem.is_ragged:
        return _ragged(arrays, options, extras, dlse, backward=backward)
    q, k, v = (arrays[name] for name in ("q", "k", "v"))
    if problem.page_size:
        k, v = (_gather(pages, problem, arrays) for pages in (k, v))
    if not backward:
        result = attention(q, k, v, options=options, extras=extras)
        return Reference(outputs={"out": result.out, "lse": result.lse})
    result, gradients = attention_with_gradients(q, k, v, arrays["dout"], options=options, extras=extras, dlse=dlse)
    outputs = {"out": result.out, "lse": result.lse, **_named(gradients)}
    if problem.page_size:
        for name in ("dk", "dv"):
            npages, page_size = arrays[name[1:]].shape[:2]
            outputs[name] = add_to_pages(
                outputs[name], arrays["page_table"], arrays["seqlens_k"], npages=npages, page_size=page_size
            )
    return Reference(outputs=outputs)


def _gather(pages: Array, problem: AttentionProblem, arrays: Mapping[str, Array]) -> Array:
    """Keys or values of a paged cache, padded with zeros to seqlen_k."""
    padded = gather_pages(pages, arrays["page_table"], arrays["seqlens_k"])
    slack = problem.seqlen_k - padded.shape[1]
    return np.pad(padded, ((0, 0), (0, slack), (0, 0), (0, 0)))


def _ragged(
    arrays: Mapping[str, Array],
    options: AttentionOptions,
    extras: AttentionExtras,
    dlse: Array | None,
    *,
    backward: bool,
) -> Reference:
    q, k, v = (arrays[name] for name in ("q", "k", "v"))
    lengths: dict[str, Any] = {name: arrays[name] for name in ("cu_seqlens_q", "cu_seqlens_k")}
    result = attention_varlen(q, k, v, **lengths, options=options, extras=extras)
    outputs = {"out": result.out, "lse": result.lse}
    if backward:
        gradients = attention_varlen_backward(
            q, k, v, arrays["dout"], **lengths, options=options, extras=extras, dlse=dlse
        )
        outputs |= _named(gradients)
    return Reference(outputs=outputs)


def _named(gradients: Gradients) -> dict[str, Float64]:
    names = ("dq", "dk", "dv", "dbias", "dsink")
    return {name: getattr(gradients, name) for name in names if getattr(gradients, name) is not None}
