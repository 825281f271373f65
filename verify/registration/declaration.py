"""How a user declares a kernel: the decorator `verify.register` and what it reads off the function's signature.

Pure declarations: nothing is called, converted or judged here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from verify.contract import Arithmetic, Contract
from verify.errors import require
from verify.registration.presets import arithmetic_of, capabilities_of
from verify.registration.signature import ARRAYS, FORWARD_BUFFERS, Function, argument_names, arrays_of, features_of

ATTRIBUTE = "attn_verify"
"""Attribute of a decorated function that holds its Declaration."""
LAYOUTS = ("bshd", "bhsd")


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """A user's function with everything that running and judging it needs."""

    name: str
    function: Function
    contract: Contract
    arrays: str
    """Which arrays the function takes and returns: torch, cupy or numpy."""
    layout: str = "bshd"
    """bshd: (batch, seqlen, nheads, head_dim); bhsd: (batch, nheads, seqlen, head_dim)."""
    returns: tuple[str, ...] = ("out",)
    """Outputs that the function returns, in order; where it takes buffers of these names it fills those instead."""
    backward: Function | None = None
    backward_returns: tuple[str, ...] = ("dq", "dk", "dv")
    autograd: bool = False
    """The gradients come from torch's autograd through the function."""
    contiguous: bool = False
    """Inputs are copied to contiguous memory first: strides of the case never reach the function."""


def register(
    function: Function | None = None,
    *,
    name: str = "",
    dtypes: Iterable[str] = ("fp32",),
    features: Iterable[str] | None = None,
    arrays: str = "",
    layout: str = "bshd",
    returns: Iterable[str] = (),
    backward: Function | None = None,
    backward_returns: Iterable[str] = ("dq", "dk", "dv"),
    autograd: bool = False,
    contiguous: bool = False,
    alignment: str = "bottom_right",
    arithmetic: str | Arithmetic | Mapping[str, Arithmetic] = "fused",
    contract: Contract | None = None,
    **capabilities: Any,
) -> Any:
    """Declare a function as a candidate; usable bare (`@register`) or with options.

    Parameters
    ----------
    function
        Takes q, k, v, softmax_scale and any of the arguments of `FEATURE_ARGUMENTS`, by name.
    dtypes
        Storage dtypes that it takes: fp32, fp16, bf16.
    features
        Names of `verify.contract.OPTIONAL_FEATURES`; None = those whose arguments the signature has.
    arrays
        torch, cupy or numpy; empty = by the annotation of q, else by the libraries that the function's module imports.
    returns
        Names of what it returns, in order; empty = the buffers it takes (`out`, `lse`), or `out` alone.
    backward
        Function of the same arguments and out, lse, dout; returns or fills the gradients `backward_returns`.
    autograd
        The gradients come from torch's autograd.
    contiguous
        Copy inputs to contiguous memory first, for kernels that take no strides.
    alignment
        Meaning of its `causal`: bottom_right or top_left; both where it takes an argument `alignment`.
    arithmetic
        `fused` (fp32 inside, P and dS in the storage dtype at the products), `eager` (every intermediate stored in the
        storage dtype), an Arithmetic for all dtypes, or one for each.
    contract
        The whole contract, in place of dtypes, features, arithmetic and capabilities.
    **capabilities
        Further fields of `verify.contract.Capabilities`, e.g. max_head_dim=128.

    Raises
    ------
    UsageError
        For an argument that the harness cannot offer, a feature without its argument, or an option of a wrong value.
    """

    def decorate(target: Function) -> Function:
        taken = argument_names(target)
        named = tuple(returns) or tuple(buffer for buffer in FORWARD_BUFFERS if buffer in taken.values()) or ("out",)
        grads = tuple(backward_returns) if backward is not None or autograd else ()
        shown = features_of(target, features, alignment)
        declared = contract or Contract(
            capabilities=capabilities_of(tuple(dtypes), shown, (*named, *grads), capabilities),
            arithmetic=arithmetic_of(arithmetic, tuple(dtypes), autograd=autograd),
        )
        declaration = Declaration(
            name=name or target.__name__,
            function=target,
            contract=declared,
            arrays=arrays or arrays_of(target),
            layout=layout,
            returns=named,
            backward=backward,
            backward_returns=grads,
            autograd=autograd,
            contiguous=contiguous,
        )
        _check(declaration)
        setattr(target, ATTRIBUTE, declaration)
        return target

    return decorate if function is None else decorate(function)


def declaration_of(function: Function) -> Declaration:
    """The declaration of a decorated function, or the default one of a bare function."""
    if not hasattr(function, ATTRIBUTE):
        register(function)
    declaration: Declaration = getattr(function, ATTRIBUTE)
    return declaration


def renamed(declaration: Declaration, name: str) -> Declaration:
    """The same under the name that the user typed."""
    return replace(declaration, name=name)


def _check(declaration: Declaration) -> None:
    taken = argument_names(declaration.function)
    label = f"signature of {declaration.name}"
    for needed in ("q", "k", "v", "softmax_scale"):
        require(needed in taken.values(), label, tuple(taken), f"a parameter {needed}")
    require(declaration.arrays in ARRAYS, "arrays", declaration.arrays, "one of " + ", ".join(ARRAYS))
    require(declaration.layout in LAYOUTS, "layout", declaration.layout, "one of " + ", ".join(LAYOUTS))
    packed = declaration.contract.capabilities.features & {"ragged", "paged"}
    require(not packed or declaration.layout == "bshd", "layout", declaration.layout, "bshd for ragged or paged inputs")
    both = declaration.autograd and declaration.backward is not None
    require(not both, "autograd", True, "no backward function beside it")
    require(not declaration.autograd or declaration.arrays == "torch", "autograd", True, "a function on torch tensors")
    if declaration.backward is not None:
        wanted = argument_names(declaration.backward, backward=True).values()
        kept = "lse" not in wanted or "lse" in declaration.returns
        require(kept, "returns", declaration.returns, "lse in it, because the backward takes lse")
