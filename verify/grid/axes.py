"""The words of a problem spec - mask, form, lengths - and the problem fields that they stand for.

Shared by the explicit grid and the Hypothesis strategies, so that both mean the same by "ragged" or "causal_window".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from verify.case import Recipe
from verify.errors import require
from verify.problem import AttentionProblem, default_scale

FORMS = ("plain", "lengths", "ragged", "paged")
MASKS = ("none", "causal", "causal_topleft", "window", "causal_window", "boolean", "block_sparse")
SCORES = ("bias", "alibi", "softcap", "sink", "dropout")
GROUPS = (1, 2, 3, 5, 7)
"""Query heads a key/value head; 3, 5 and 7 tell a division by the group from one by the number of groups."""

TINY_LENGTHS = (0, 1, 2, 3)
TILE_EDGES = (15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129)
"""Multiples of the tiles 16, 32, 64, 128 and their neighbours."""
HEAD_DIMS = (64, 32, 128, 80, 72, 96, 40, 16, 8)
"""Multiples of 8; 80, 72, 96 and 40 have a scale that is no power of two, 72 and 40 are no multiple of 16."""
ODD_HEAD_DIMS = (1, 3, 7, 33, 65)

GRID_RECIPES = (
    Recipe.of("normal"),
    Recipe.of("normal", std=3.0),
    Recipe.of("integers"),
    Recipe.of("outliers", p=0.01),
    Recipe.of("outliers"),
    Recipe.of("logits", max=1.0),
    Recipe.of("logits", max=10.0),
    Recipe.of("logits", max=100.0),
    Recipe.of("logits", max=1000.0),
    Recipe.of("logits", max=10000.0),
    Recipe.of("identical_queries"),
    Recipe.of("identical_keys"),
    Recipe.of("zero_queries"),
    Recipe.of("two_keys"),
    Recipe.of("low_logits"),
    Recipe.of("low_logits", level=22.0),
    Recipe.of("exact_ties"),
    Recipe.of("exact_ties", count=2),
    Recipe.of("near_ties"),
    Recipe.of("needle", position="first"),
    Recipe.of("needle", position="last"),
    Recipe.of("needle", position="tile_edge"),
    Recipe.of("needle", position=5),
    Recipe.of("rising_tiles"),
    Recipe.of("falling_tiles"),
    Recipe.of("kdim_trend"),
    Recipe.of("kmean"),
    Recipe.of("v_constant"),
    Recipe.of("v_mean"),
    Recipe.of("v_cancel"),
    Recipe.of("v_trend"),
    Recipe.of("v_zero_channel"),
    Recipe.of("subnormal"),
    Recipe.of("near_overflow"),
)
"""Recipes of the grid, simple to hard."""
LOW_UNSCALED = Recipe.of("low_logits", unscaled=60000.0)
"""q k^T below -5e4, the range of finite guard values; a kernel that keeps scores in fp16 is near its limit there."""


def mask_fields(mask: str, window: tuple[int | None, int | None] = (7, 4)) -> dict[str, Any]:
    """Fields of AttentionProblem for a mask word; `window` serves the two windows, causal ones see nothing right."""
    require(mask in MASKS, "mask", mask, "one of " + ", ".join(MASKS))
    fields: Mapping[str, dict[str, Any]] = {
        "causal": {"causal": True},
        "causal_topleft": {"causal": True, "alignment": "top_left"},
        "window": {"window": window},
        "causal_window": {"causal": True, "window": (window[0], 0)},
        "boolean": {"pattern": "boolean"},
        "block_sparse": {"pattern": "block_sparse"},
    }
    return fields.get(mask, {})


def score_fields(names: Sequence[str]) -> dict[str, Any]:
    """Fields of AttentionProblem for the score modifications of those names, with plain parameters."""
    fields: Mapping[str, dict[str, Any]] = {
        "bias": {"bias": "additive"},
        "alibi": {"bias": "alibi"},
        "softcap": {"softcap": 15.0},
        "sink": {"sink": True},
        "dropout": {"dropout_p": 0.25},
    }
    merged: dict[str, Any] = {}
    for name in names:
        merged |= fields[name]
    return merged


def length_fields(form: str, lengths_q: Sequence[int], lengths_k: Sequence[int], page_size: int = 16) -> dict[str, Any]:
    """Fields of AttentionProblem for the lengths of each sequence.

    plain takes the longest of each for all sequences; lengths and paged take the longest q and pad the keys.
    """
    require(form in FORMS, "form", form, "one of " + ", ".join(FORMS))
    fields: dict[str, Any] = {
        "batch": len(lengths_q),
        "seqlen_q": max(lengths_q),
        "seqlen_k": max(lengths_k),
    }
    if form == "ragged":
        fields["cu_seqlens_q"] = tuple(accumulate(lengths_q, initial=0))
        fields["cu_seqlens_k"] = tuple(accumulate(lengths_k, initial=0))
    if form in ("lengths", "paged"):
        fields["seqlens_k"] = tuple(lengths_k)
    if form == "paged":
        fields["page_size"] = page_size
    return fields


def layouts_for(form: str, group: int, square: bool, same_dims: bool) -> tuple[str, ...]:
    """Layouts that a problem of that form can have, simple to hard."""
    # "strided" is not among them: few candidates take it, so it is drawn apart.
    if form in ("ragged", "paged"):
        return ("bshd", "offset", "sliced")
    packable = group == 1 and square and same_dims
    return ("bshd", "bhsd", "offset", "sliced", "broadcast", *(("packed_qkv",) if packable else ()))


def make_problem(**fields: Any) -> AttentionProblem:
    """AttentionProblem with head_dim_v, nheads_kv and softmax_scale resolved from head_dim and nheads."""
    head_dim = fields.setdefault("head_dim", 64)
    fields.setdefault("head_dim_v", head_dim)
    fields.setdefault("nheads_kv", fields.get("nheads", 1))
    fields.setdefault("softmax_scale", default_scale(head_dim))
    return AttentionProblem(**fields)
