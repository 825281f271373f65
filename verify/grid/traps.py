"""Hand-picked cases: each a known way for attention kernels to go wrong, that random inputs hardly ever reach."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from verify.case import Recipe
from verify.grid.axes import LOW_UNSCALED, length_fields, make_problem, mask_fields, score_fields
from verify.problem import AttentionProblem

Spec = tuple[AttentionProblem, Recipe]

NORMAL = Recipe.of("normal")
_DTYPES = ("fp32", "fp16", "bf16")
_HIDING: dict[str, Any] = {"bias": "additive", "bias_hidden": 0.9}


def trap_specs() -> list[Spec]:
    """(problem, recipe) of every trap, in a fixed order."""
    return [*_value_traps(), *_length_traps(), *_mask_traps(), *_head_traps(), *_memory_traps(), *_long_traps()]


def rare_specs() -> list[Spec]:
    """Traps that few candidates take: gaps within head vectors, a bias that hides keys, and one of unequal lengths."""
    specs = []
    for dtype in _DTYPES:
        specs += [
            _spec(NORMAL, 17, 33, dtype=dtype, batch=2, nheads=2, layout="strided"),
            # Random bits alone hardly ever hide a whole row; the bias then does what a mask does.
            _spec(NORMAL, 33, 65, dtype=dtype, nheads=2, bias="additive", bias_hidden=0.3),
        ]
    specs.append(_spec(NORMAL, 17, 33, dtype="fp32", batch=2, nheads=2, **_HIDING, bias_broadcast=(True, True)))
    specs.append(_spec(NORMAL, 17, 33, dtype="fp16", nheads=2, **_HIDING, causal=True, sink=True))
    # A short sequence before a longer one: its keys end where those of the next one begin.
    rising = length_fields("ragged", (5, 5), (3, 17))
    specs += [(make_problem(**rising, dtype=dtype, nheads=2), NORMAL) for dtype in _DTYPES]
    return specs


def _spec(recipe: Recipe, seqlen_q: int, seqlen_k: int, head_dim: int = 64, **fields: Any) -> Spec:
    return make_problem(seqlen_q=seqlen_q, seqlen_k=seqlen_k, head_dim=head_dim, **fields), recipe


def _value_traps() -> Iterator[Spec]:
    """Scales that are no power of two, lengths off the tile, and the values that one format or another stumbles on."""
    recipes = (
        (Recipe.of("logits", max=1.0), 72),
        (Recipe.of("logits", max=100.0), 80),
        (Recipe.of("v_mean", mean=100.0), 80),
        (Recipe.of("two_keys"), 96),
        (Recipe.of("outliers"), 72),
    )
    for dtype in _DTYPES:
        for recipe, head_dim in recipes:
            yield _spec(recipe, 33, 65, head_dim, dtype=dtype, nheads=2)
    yield _spec(Recipe.of("logits", max=10.0), 33, 100, 80, dtype="fp16", nheads=2)
    yield _spec(Recipe.of("logits", max=10000.0), 33, 100, 80, dtype="fp32")
    yield _spec(Recipe.of("logits", max=10000.0), 33, 100, 80, dtype="bf16")
    # Ties of the maximum with v of one sign bias a bf16 output (Qiu and Yao 2025, arXiv 2510.04212).
    yield _spec(Recipe.of("exact_ties"), 65, 65, 72, dtype="bf16", nheads=2)
    yield _spec(Recipe.of("identical_keys"), 17, 100, 96, dtype="fp16")
    yield _spec(Recipe.of("identical_queries"), 65, 33, 80, dtype="bf16")
    # A tail of a tile that is not masked adds exp(0 - max): invisible unless all scores are far below 0.
    for dtype in _DTYPES:
        yield _spec(Recipe.of("low_logits"), 1, 129, dtype=dtype, nheads=2)
    yield _spec(LOW_UNSCALED, 17, 65, dtype="fp32")
    yield _spec(LOW_UNSCALED, 17, 65, dtype="bf16")
    yield _spec(Recipe.of("low_logits"), 65, 65, dtype="fp32", causal=True)
    # The first key tiles of late rows are fully masked: a guard value must not become the running maximum.
    yield _spec(Recipe.of("low_logits"), 129, 129, dtype="bf16", **mask_fields("causal_window", (8, 0)))
    yield _spec(Recipe.of("logits", max=100.0), 33, 65, dtype="fp16", softcap=20.0)


def _length_traps() -> Iterator[Spec]:
    for seqlen_q, seqlen_k in ((0, 5), (5, 0), (1, 1), (2, 3), (1, 65), (16, 1)):
        yield _spec(NORMAL, seqlen_q, seqlen_k, dtype="fp16", batch=2)
    # Bottom-right causal with more rows than keys: the first rows see nothing.
    for dtype in _DTYPES:
        yield _spec(NORMAL, 65, 33, 72, dtype=dtype, causal=True, nheads=2)
    yield _spec(NORMAL, 33, 65, dtype="bf16", **mask_fields("causal_topleft"))
    yield _spec(NORMAL, 65, 33, dtype="fp16", **mask_fields("causal_topleft"))
    ragged = length_fields("ragged", (0, 17, 1, 33), (5, 17, 1, 0))
    yield make_problem(**ragged, dtype="fp16", nheads=2), NORMAL
    yield make_problem(**ragged, dtype="fp32", nheads=3, nheads_kv=1, causal=True), Recipe.of("integers")
    # Sequences whose keys have length 1 under a causal mask have given NaN in dQ alone.
    ones = length_fields("ragged", (1, 16, 3), (1, 1, 1))
    yield make_problem(**ones, dtype="bf16", causal=True, head_dim=72), NORMAL
    yield make_problem(**length_fields("lengths", (17,) * 3, (0, 65, 33)), dtype="bf16"), NORMAL
    for page_size, dtype in ((1, "fp32"), (16, "fp16"), (256, "bf16")):
        fields = length_fields("paged", (1, 1, 1), (65, 0, 16), page_size)
        yield make_problem(**fields, dtype=dtype, nheads=4, nheads_kv=2), NORMAL


def _mask_traps() -> Iterator[Spec]:
    for window in ((0, 0), (3, None), (None, 2), (200, 200), (15, 16)):
        yield _spec(NORMAL, 33, 65, dtype="fp32", window=window)
    # Keys before the first visible tile, and rows beyond every band.
    yield _spec(Recipe.of("needle", position="tile_edge"), 129, 129, 32, dtype="fp16", window=(20, 0), causal=True)
    yield _spec(NORMAL, 65, 17, 32, dtype="bf16", window=(3, 3))
    yield _spec(NORMAL, 33, 65, dtype="fp16", nheads=2, pattern="boolean", keep_fraction=0.05)
    yield _spec(NORMAL, 17, 33, dtype="fp32", pattern="boolean", keep_fraction=0.0)
    yield _spec(NORMAL, 17, 33, dtype="bf16", pattern="boolean", keep_fraction=1.0)
    yield _spec(NORMAL, 65, 65, dtype="fp32", pattern="block_sparse", keep_fraction=0.4, causal=True)
    yield _spec(NORMAL, 33, 65, dtype="bf16", pattern="block_sparse", block_size=(8, 32))
    # Softmax is invariant under a shift, so a slope off by one key shows in lse alone, or when seqlens differ.
    yield _spec(NORMAL, 17, 65, dtype="fp32", nheads=3, causal=True, bias="alibi")
    for shared in ((False, False), (True, False), (True, True)):
        yield _spec(NORMAL, 17, 33, dtype="fp16", batch=2, nheads=2, bias="additive", bias_broadcast=shared)
    yield _spec(NORMAL, 33, 17, 32, dtype="bf16", nheads=2, causal=True, sink=True)
    yield _spec(Recipe.of("low_logits"), 17, 33, 32, dtype="fp32", nheads=2, sink=True)
    yield _spec(NORMAL, 33, 33, 32, dtype="fp32", dropout_p=0.9)
    yield _spec(NORMAL, 33, 65, 32, dtype="fp16", softmax_scale=0.7, **score_fields(("softcap", "sink")))


def _head_traps() -> Iterator[Spec]:
    """Ratios that are not the number of key/value heads, and head dims that some tiles pad."""
    for nheads, nheads_kv, dtype in ((6, 2, "fp16"), (5, 1, "bf16"), (14, 2, "fp32"), (6, 3, "bf16")):
        yield _spec(NORMAL, 17, 33, 32, dtype=dtype, nheads=nheads, nheads_kv=nheads_kv, batch=2)
    yield _spec(NORMAL, 33, 65, 128, dtype="bf16", head_dim_v=96, nheads=6, nheads_kv=2)
    yield _spec(NORMAL, 33, 33, 64, dtype="fp16", head_dim_v=128)
    for head_dim in (1, 7, 33, 40, 256):
        yield _spec(NORMAL, 17, 33, head_dim, dtype="fp32", causal=True)
    for dtype in ("fp16", "bf16"):
        yield _spec(Recipe.of("kdim_trend"), 17, 65, 72, dtype=dtype)


def _memory_traps() -> Iterator[Spec]:
    yield _spec(NORMAL, 17, 33, dtype="fp32", batch=2, nheads=2, layout="broadcast", pattern="boolean")
    for dtype in _DTYPES:
        yield _spec(NORMAL, 33, 33, dtype=dtype, batch=2, nheads=2, layout="packed_qkv", causal=True)
    yield _spec(NORMAL, 33, 65, dtype="bf16", batch=2, nheads=4, nheads_kv=2, layout="sliced", causal=True)
    yield _spec(NORMAL, 33, 65, dtype="fp16", batch=2, nheads=2, layout="bhsd")
    yield _spec(NORMAL, 17, 33, dtype="fp32", nheads=2, layout="offset")


def _long_traps() -> Iterator[Spec]:
    """Few queries against many keys: drift of the accumulators grows with the number of keys."""
    yield _spec(NORMAL, 8, 4096, dtype="fp16")
    yield _spec(NORMAL, 4, 600, dtype="fp32", **mask_fields("window", (300, 40)))
    yield _spec(Recipe.of("v_mean", mean=100.0), 3, 1025, dtype="bf16")
    yield _spec(Recipe.of("rising_tiles"), 4, 512, dtype="fp16", nheads=2)
    yield _spec(Recipe.of("falling_tiles"), 4, 769, 80, dtype="fp32", causal=True)
    yield _spec(Recipe.of("needle", position="first"), 2, 1000, 72, dtype="bf16", nheads=4, nheads_kv=2)
