"""What a function's signature says: the arguments it takes, the features they stand for, the arrays it works on."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from verify.errors import UsageError, require

ARRAYS = ("torch", "cupy", "numpy")
ALIASES = {
    "query": "q",
    "key": "k",
    "value": "v",
    "scale": "softmax_scale",
    "sm_scale": "softmax_scale",
    "is_causal": "causal",
    "attn_mask": "mask",
    "block_table": "page_table",
    "cache_seqlens": "seqlens_k",
    "o": "out",
    "do": "dout",
}
"""Names that other libraries use for the same arguments."""
FEATURE_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "causal": ("causal",),
    "causal_topleft": ("causal", "alignment"),
    "window": ("window_size",),
    "boolean": ("mask",),
    "block_sparse": ("block_mask", "block_size"),
    "bias": ("bias",),
    "alibi": ("alibi_slopes",),
    "softcap": ("softcap",),
    "sink": ("sink",),
    "dropout": ("dropout_keep", "dropout_p"),
    "ragged": ("cu_seqlens_q", "cu_seqlens_k"),
    "lengths": ("seqlens_k",),
    "paged": ("seqlens_k", "page_table"),
}
"""Feature -> the arguments without which a function cannot have it; gqa and dv show in shapes alone."""
PLAIN_ARGUMENTS = ("q", "k", "v", "softmax_scale", "max_seqlen_q", "max_seqlen_k", "seed", "num_splits")
FORWARD_BUFFERS = ("out", "lse")
GRADIENTS = ("dq", "dk", "dv", "dbias", "dsink")
BACKWARD_ARGUMENTS = ("out", "lse", "dout", "dlse", *GRADIENTS)
_FEATURE_NAMES = tuple(dict.fromkeys(name for names in FEATURE_ARGUMENTS.values() for name in names))

Function = Callable[..., Any]


def argument_names(function: Function, *, backward: bool = False) -> dict[str, str]:
    """Parameter of the function -> our name of the argument that it is given, in the order of the signature.

    Raises
    ------
    UsageError
        For a parameter without default that the harness does not know.
    """
    known = {*PLAIN_ARGUMENTS, *_FEATURE_NAMES, *(BACKWARD_ARGUMENTS if backward else FORWARD_BUFFERS)}
    found: dict[str, str] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        meaning = ALIASES.get(parameter.name, parameter.name)
        if meaning in known and parameter.kind is not parameter.POSITIONAL_ONLY:
            found[parameter.name] = meaning
        elif parameter.default is parameter.empty:
            expected = "names out of " + ", ".join(sorted(known))
            raise UsageError(f"parameter {parameter.name!r} of {function.__name__}: expected {expected}")
    return found


def features_of(function: Function, stated: Iterable[str] | None, alignment: str) -> frozenset[str]:
    """Features whose arguments the function takes; those stated, where some are, if it takes their arguments."""
    require(alignment in ("bottom_right", "top_left"), "alignment", alignment, "bottom_right or top_left")
    taken = set(argument_names(function).values())
    able = {feature for feature, needed in FEATURE_ARGUMENTS.items() if taken.issuperset(needed)}
    if "causal" in taken and "alignment" not in taken:
        able = able - {"causal", "causal_topleft"} | {"causal" if alignment == "bottom_right" else "causal_topleft"}
    if stated is None:
        return frozenset(able)
    chosen = frozenset(stated)
    for feature in sorted(chosen - able):
        needed = FEATURE_ARGUMENTS.get(feature, ())
        require(not needed, "features", feature, f"{function.__name__} to take {' and '.join(needed)}")
    return chosen


def arrays_of(function: Function) -> str:
    """Array library by the annotation of q, else the first that the function's module imports, else NumPy."""
    annotation = str(inspect.signature(function).parameters.get("q", "")).lower()
    used = {getattr(value, "__name__", "") for value in getattr(function, "__globals__", {}).values()}
    for library in ARRAYS:
        if library in annotation or ("ndarray" in annotation and library == "numpy"):
            return library
    return next((library for library in ARRAYS if library in used), "numpy")
