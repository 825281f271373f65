"""What a declaration turns into: arithmetic by preset, capabilities by keyword."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from verify.contract import Arithmetic, Capabilities
from verify.dtypes import STORAGE_DTYPES
from verify.errors import UsageError, require

_SETS = ("required", "layouts")
"""Fields of Capabilities that may be given as any collection of names."""


def capabilities_of(
    dtypes: tuple[str, ...], features: frozenset[str], outputs: tuple[str, ...], further: Mapping[str, Any]
) -> Capabilities:
    """Capabilities from dtypes, features, outputs and further fields; UsageError for an unknown one."""
    unknown = sorted(set(dtypes) - set(STORAGE_DTYPES))
    require(not unknown, "dtypes", unknown, "names out of " + ", ".join(STORAGE_DTYPES))
    values: dict[str, Any] = {
        "dtypes": frozenset(dtypes),
        "features": features,
        "outputs": frozenset(outputs),
        "backward": "dq" in outputs,
        **{name: frozenset(value) if name in _SETS else value for name, value in further.items()},
    }
    try:
        return Capabilities(**values)
    except TypeError as error:
        raise UsageError(f"capabilities={sorted(further)}: expected fields of verify.contract.Capabilities") from error


def arithmetic_of(
    given: str | Arithmetic | Mapping[str, Arithmetic], dtypes: tuple[str, ...], *, autograd: bool
) -> Mapping[str, Arithmetic]:
    """One Arithmetic for each dtype from a preset's name, one for all, or a mapping that is taken as it is."""
    if isinstance(given, Arithmetic):
        return dict.fromkeys(dtypes, given)
    if not isinstance(given, str):
        return given
    require(given in ("fused", "eager"), "arithmetic", given, "fused, eager, an Arithmetic or a mapping of them")
    return {dtype: preset(given, dtype, renormalises=autograd) for dtype in dtypes}


def preset(style: str, dtype: str, *, renormalises: bool = False) -> Arithmetic:
    """Arithmetic of the two customary ways to write attention.

    `renormalises` = the backward works on the softmax that the forward kept (autograd), not on a stored lse.
    """
    common = Arithmetic(
        products_exact=dtype != "fp32",
        # vectorised exponentials of math libraries promise 4 ulp at most (SLEEF u35 and Intel SVML "la" are below it)
        exp_ulp=4.0,
        probs_backward_dtype=dtype,
        dscores_dtype=dtype,
        delta_from="dprobs" if renormalises else "out",
        lse_stored=not renormalises,
    )
    if style == "fused":
        return replace(common, probs_dtype=dtype)
    return replace(common, scores_dtype=dtype, probs_normalised_dtype=dtype, dprobs_dtype=dtype)
