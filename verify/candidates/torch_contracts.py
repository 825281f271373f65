"""What the CPU backends of torch declare. Read from the sources of torch 2.13 and confirmed by measurement.

Measured on AVX-512 with torch 2.13.0+cpu; every figure here is a fact about the library, none is a tolerance.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from verify.contract import Arithmetic, Capabilities, Contract
from verify.dtypes import STORAGE_DTYPES
from verify.problem import EVERY_LAYOUT

_SDPA_FEATURES = frozenset({"causal", "causal_topleft", "boolean", "bias", "bias_minus_infinity", "gqa"})
READ = (2, 13)
"""Release whose sources were read."""
EMPTY_SINCE = (2, 13)
"""First release that was seen to answer empty sequences; 2.11 refuses them, 2.12 was not tried."""
FLASH_TILE_K = 512
"""Keys a tile (FlashAttentionKernel.cpp, flash_attention_kernel_impl)."""
FLASH_TILE_Q = 32
"""Query rows a tile below 192 rows; 64 from 192 and 256 from 768 rows, where this figure counts too many roundings."""


def _flash_arithmetic(storage: str) -> Arithmetic:
    """ATen/native/cpu/FlashAttentionKernel.cpp: cpu_flash_attention and cpu_flash_attention_backward.

    - P is converted to the storage dtype before P V, the sum is taken before (_exp_reduce_sum_fusion_kernel).
    - exp of fp16 and bf16 is the fast one: lse of 64 equal keys is off by up to 843 * 2^-23. In fp32 the ratio of two
      weights is off by at most 2.8 * 2^-23, and exp(0) is 1.
    - grad_q, grad_k and grad_v are accumulated by gemm with beta = 1 in their own dtype, block after block and, for
      the query heads of a group, head after head.
    - dsum is the row sum of grad_out times the stored out.
    """
    reduced = storage != "fp32"
    return Arithmetic(
        probs_dtype=storage,
        probs_backward_dtype=storage,
        dscores_dtype=storage,
        products_exact=reduced,
        exp_ulp=1000.0 if reduced else 3.0,
        argmax_exact=not reduced,
        tile_q=FLASH_TILE_Q,
        tile_k=FLASH_TILE_K,
        delta_from="out",
        lse_stored=True,
        rounds_dq_per_tile=reduced,
        rounds_dkv_per_tile=reduced,
        group_sum_dtype=storage,
    )


def _math_arithmetic(storage: str) -> Arithmetic:
    """ATen/native/transformers/attention.cpp: _scaled_dot_product_attention_math, unfused.

    q, k and v are converted to fp32 first and everything stays fp32 until out and the gradients are stored, the sum
    over a group included. q and k are each multiplied by the root of the scale; _safe_softmax stores P, which its
    backward reads: delta is rowsum(P*dP). Its exp is off by less than one ulp.
    """
    # The format of the scaled q and k is fp32 whatever the storage. For fp16 and bf16 that is stated as six roundings
    # of the scores (two products, and a rounded root that enters twice) and inexact products.
    own_format = storage == "fp32"
    return Arithmetic(
        products_exact=False,
        scale_on="q_and_k" if own_format else "scores",
        scale_roundings=2 if own_format else 6,
        delta_from="dprobs",
        lse_stored=False,
    )


def _flex_arithmetic(storage: str) -> Arithmetic:
    """torch/_higher_order_ops/flex_attention.py: math_attention, the path without compilation.

    Scores and softmax in fp32; the normalised P is converted to the storage dtype before it meets V. lse is divided by
    ln 2 and multiplied by it again on the way out: two more roundings of it, counted with those of the scores and of
    the logarithm.
    """
    return Arithmetic(
        probs_normalised_dtype=storage,
        products_exact=storage != "fp32",
        scale_roundings=4,
        log_ulp=4.0,
        delta_from="dprobs",
        lse_stored=False,
    )


def _flex_cuda_arithmetic(storage: str) -> Arithmetic:
    """torch/_inductor/kernel/flex: the compiled Triton templates.

    S times the scale, then times log2(e), both rounded; the sum is taken from the fp32 P, which is converted to the
    storage dtype for P V; dS takes the fp32 P and is converted for dQ and dK; the scale meets dQ and dK in fp32, and a
    group of query heads is summed in fp32. fp32 inputs are multiplied as such ("ieee").
    """
    reduced = storage != "fp32"
    return Arithmetic(
        probs_dtype=storage,
        probs_backward_dtype=storage,
        dscores_dtype=storage,
        accumulate="rtz" if reduced else "rne",
        accumulate_chunk=16 if reduced else 1,
        products_exact=reduced,
        scale_roundings=4,
        log_ulp=4.0,
        tile_q=16,
        tile_k=16,
        delta_from="out",
        lse_stored=True,
    )


def _contract(capabilities: Capabilities, arithmetic: dict[str, Arithmetic]) -> Contract:
    return Contract(capabilities=capabilities, arithmetic=arithmetic)


def flash_contract(release: tuple[int, int]) -> Contract:
    """The CPU flash backend of a torch release (major, minor): 2.11 refuses empty sequences, 2.13 answers them."""
    return _contract(
        Capabilities(
            features=_SDPA_FEATURES,
            max_head_dim=512,
            outputs=frozenset({"out", "lse", "dq", "dk", "dv"}),
            empty=release >= EMPTY_SINCE,
        ),
        {storage: _flash_arithmetic(storage) for storage in STORAGE_DTYPES},
    )


def installed_release() -> tuple[int, int]:
    """(major, minor) of the installed torch, without importing it; the release that was read where there is none."""
    try:
        major, minor = version("torch").split(".")[:2]
    except PackageNotFoundError:
        return READ
    return int(major), int(minor)


FLASH = flash_contract(installed_release())
MATH = _contract(
    Capabilities(
        features=_SDPA_FEATURES | {"dv"},
        layouts=frozenset(EVERY_LAYOUT),
        max_head_dim=512,
        outputs=frozenset({"out", "dq", "dk", "dv", "dbias"}),
    ),
    {storage: _math_arithmetic(storage) for storage in STORAGE_DTYPES},
)
FLEX = _contract(
    Capabilities(
        features=frozenset(
            {"causal", "causal_topleft", "window", "boolean", "block_sparse", "bias", "alibi", "softcap", "gqa", "dv"}
        ),
        max_head_dim=512,
        backward=False,
        outputs=frozenset({"out", "lse"}),
        empty=False,
    ),
    {storage: _flex_arithmetic(storage) for storage in STORAGE_DTYPES},
)
FLEX_CUDA = _contract(
    Capabilities(
        features=FLEX.capabilities.features,
        head_dim_multiple=16,
        outputs=frozenset({"out", "lse", "dq", "dk", "dv"}),
        takes_dlse=True,
        empty=False,
    ),
    {storage: _flex_cuda_arithmetic(storage) for storage in STORAGE_DTYPES},
)
"""tl.dot wants 16 at least; multiples of 16 are the head dims above that limit that this adapter vouches for."""
