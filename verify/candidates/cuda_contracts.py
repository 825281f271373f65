"""What fused CUDA attention kernels declare. Read from their sources; facts, never tolerances."""

from __future__ import annotations

from verify.contract import Arithmetic, Capabilities, Contract
from verify.problem import LAYOUTS

HALF = ("fp16", "bf16")
ALIGNED = frozenset(LAYOUTS) - {"offset"}
"""Layouts whose rows start at multiples of 16 bytes: what vector loads and TMA descriptors need."""
TENSOR_CORE_CHUNK = 16
"""Products that one tensor-core step sums exactly before it truncates (mma.m16n8k16 and wgmma k16)."""
TANH_APPROX_ULP = 4096.0
"""tanh.approx.f32 (PTX ISA, "tanh": maximum relative error 2^-11)."""
EX2_ULP = 2.0
"""ex2.approx.ftz.f32 (PTX ISA, "ex2": maximum relative error 2^-22.5 or so)."""


def fused_arithmetic(
    storage: str,
    *,
    tile_q: int = 64,
    tile_k: int = 64,
    sums_groups_in_storage: bool = True,
    sum_rounded_probs: bool = False,
    rounds_probs_in_dscores: bool = False,
    scale_on_dscores: bool = False,
    tanh_ulp: float | None = TANH_APPROX_ULP,
) -> Arithmetic:
    """FlashAttention-2 and its relatives: S, the row sum and all accumulators in fp32 on tensor cores; P and dS are
    converted to the storage dtype for the second product; exp2 of fma(S, c, -m c); delta from the stored out.

    Tile sizes are the smallest that the library picks for any head dim: more tiles, more roundings.
    `sums_groups_in_storage`: dk and dv of each query head are stored before the heads of a group are summed.
    """
    return Arithmetic(
        probs_dtype=storage,
        probs_backward_dtype=storage,
        probs_dscores_dtype=storage if rounds_probs_in_dscores else "fp32",
        dscores_dtype=storage,
        scale_on_dscores=scale_on_dscores,
        accumulate="rtz",
        accumulate_chunk=TENSOR_CORE_CHUNK,
        exp_ulp=EX2_ULP,
        tanh_ulp=tanh_ulp,
        exp2_fma=True,
        tile_q=tile_q,
        tile_k=tile_k,
        sum_rounded_probs=sum_rounded_probs,
        delta_from="out",
        lse_stored=True,
        group_sum_dtype=storage if sums_groups_in_storage else "fp32",
    )


def fused_contract(
    features: frozenset[str],
    *,
    max_head_dim: int = 256,
    head_dim_multiple: int = 1,
    outputs: frozenset[str] = frozenset({"out", "lse", "dq", "dk", "dv"}),
    deterministic: bool = False,
    fully_masked_rows: bool = True,
    empty: bool = False,
    dtypes: tuple[str, ...] = HALF,
    layouts: frozenset[str] = ALIGNED,
    tile_k: int = 64,
    sums_groups_in_storage: bool = True,
    sum_rounded_probs: bool = False,
    rounds_probs_in_dscores: bool = False,
    scale_on_dscores: bool = False,
    takes_dlse: bool = False,
) -> Contract:
    """Contract of a fused kernel. Not deterministic: dq is summed by atomics (issues #414, #988 of
    Dao-AILab/flash-attention) unless the library is told otherwise."""
    return Contract(
        capabilities=Capabilities(
            dtypes=frozenset(dtypes),
            features=features,
            layouts=layouts,
            max_head_dim=max_head_dim,
            head_dim_multiple=head_dim_multiple,
            backward="dq" in outputs,
            outputs=outputs,
            takes_dlse=takes_dlse,
            empty=empty,
            fully_masked_rows=fully_masked_rows,
            deterministic=deterministic,
        ),
        arithmetic={
            storage: fused_arithmetic(
                storage,
                tile_k=tile_k,
                sums_groups_in_storage=sums_groups_in_storage,
                sum_rounded_probs=sum_rounded_probs,
                rounds_probs_in_dscores=rounds_probs_in_dscores,
                scale_on_dscores=scale_on_dscores,
            )
            for storage in dtypes
        },
    )
