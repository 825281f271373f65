"""Named variants of the emulated kernel, each with the arithmetic that its contract states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from verify.candidates.numpy_tiled.candidate import NumpyTiled
from verify.candidates.numpy_tiled.scheme import Scheme
from verify.contract import Arithmetic
from verify.dtypes import STORAGE_DTYPES
from verify.errors import require

TILE = 64
"""Rows and keys of a tile: small enough that short test sequences already span several."""

SPLIT_COUNTS = (1, 2, 3, 8)
"""Splits that the variant `split` takes: fewer and more than a short sequence has tiles, and one that divides none."""

Change = Callable[[Scheme], Scheme]


def default_scheme(storage: str) -> Scheme:
    """FlashAttention-2-like: P and dS rounded to the storage dtype, fp32 accumulation, exp2 of a fused multiply-add."""
    arithmetic = Arithmetic(
        probs_dtype=storage,
        probs_backward_dtype=storage,
        dscores_dtype=storage,
        products_exact=storage != "fp32",
        exp_ulp=1.0,
        log_ulp=1.0,
        exp2_fma=True,
        tile_q=TILE,
        tile_k=TILE,
    )
    return Scheme(storage=storage, arithmetic=arithmetic)


def with_arithmetic(scheme: Scheme, **changes: Any) -> Scheme:
    """The scheme with some fields of its arithmetic replaced."""
    return replace(scheme, arithmetic=replace(scheme.arithmetic, **changes))


def _arithmetic(**changes: Any) -> Change:
    return lambda scheme: with_arithmetic(scheme, **changes)


def _eager(scheme: Scheme) -> Scheme:
    """Unfused: S, normalised P and dP are stored, and the backward reads the stored P."""
    stored = scheme.storage
    return with_arithmetic(
        scheme,
        probs_dtype="fp32",
        probs_normalised_dtype=stored,
        probs_backward_dtype="fp32",
        scores_dtype=stored,
        dprobs_dtype=stored,
        delta_from="dprobs",
        lse_stored=False,
        exp2_fma=False,
        tile_q=0,
        tile_k=0,
    )


def _unfused(scheme: Scheme) -> Scheme:
    """Every operation differentiated by itself, as MLX does: whatever passes from one to the next is stored."""
    stored = scheme.storage
    return with_arithmetic(
        _eager(scheme),
        scale_on="q",
        dscores_products_dtype=stored,
        dq_unscaled_dtype=stored,
        scaled_q_in_dk=True,
        group_sum_dtype=stored,
    )


def _fast_exp(scheme: Scheme) -> Scheme:
    return replace(with_arithmetic(scheme, exp_ulp=640.0, argmax_exact=False), exponential="cubic")


def _lazy(scheme: Scheme) -> Scheme:
    # FlashAttention-4 rescales only when the maximum grows by more than 8 in log2.
    return replace(with_arithmetic(scheme, argmax_exact=False), rescale_threshold=8.0)


def _round_per_tile(scheme: Scheme) -> Scheme:
    # Gradients kept in the storage dtype between tiles are kept so between the heads of a group as well.
    return with_arithmetic(
        scheme,
        rounds_dq_per_tile=True,
        rounds_dkv_per_tile=True,
        rounds_out_per_tile=True,
        group_sum_dtype=scheme.storage,
        tile_q=32,
        tile_k=32,
    )


def _rounded_ds(scheme: Scheme) -> Scheme:
    # The memory-efficient kernels: P waits in shared memory in the storage dtype, and dS is stored scaled.
    return with_arithmetic(scheme, probs_dscores_dtype=scheme.storage, scale_on_dscores=True)


def _group_sum(scheme: Scheme) -> Scheme:
    return with_arithmetic(scheme, group_sum_dtype=scheme.storage)


VARIANTS: dict[str, Change] = {
    "default": lambda scheme: scheme,
    "rtz16": _arithmetic(accumulate="rtz", accumulate_chunk=16, products_exact=True),
    "sequential": lambda scheme: replace(scheme, summation="sequential"),
    "exp": _arithmetic(exp2_fma=False),
    "fast_exp": _fast_exp,
    "lazy": _lazy,
    "reverse": lambda scheme: replace(scheme, key_order="reverse"),
    "tile16": _arithmetic(tile_q=16, tile_k=16),
    "split": _arithmetic(tile_q=16, tile_k=16),
    "one_tile": _arithmetic(tile_q=0, tile_k=0),
    "p_fp32": _arithmetic(probs_dtype="fp32", probs_backward_dtype="fp32", dscores_dtype="fp32"),
    "l_rounded": _arithmetic(sum_rounded_probs=True),
    "q_prescaled": _arithmetic(scale_on="q"),
    "qk_prescaled": _arithmetic(scale_on="q_and_k"),
    "delta_accumulator": _arithmetic(delta_from="accumulator"),
    "delta_dprobs": _arithmetic(delta_from="dprobs"),
    "round_per_tile": _round_per_tile,
    "group_sum_rounded": _group_sum,
    "rounded_ds": _rounded_ds,
    "out_fp32": _arithmetic(out_dtype="fp32"),
    "eager": _eager,
    "unfused": _unfused,
}


def build(variant: str = "default") -> NumpyTiled:
    """The candidate of one variant.

    Raises
    ------
    UsageError
        For an unknown variant; the message lists the known ones.
    """
    require(variant in VARIANTS, "variant", variant, "one of " + ", ".join(VARIANTS))
    schemes = {storage: VARIANTS[variant](default_scheme(storage)) for storage in STORAGE_DTYPES}
    name = "numpy_tiled" if variant == "default" else f"numpy_tiled:{variant}"
    return NumpyTiled(schemes, name=name, split_counts=SPLIT_COUNTS if variant == "split" else ())
