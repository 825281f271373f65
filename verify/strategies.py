"""Hypothesis strategies for problems, recipes and cases. They draw a spec and a seed, never an array.

Hard regions are ordinary values here: lengths 0 to 3 and the neighbours of tile edges, rows that see nothing, odd head
dims, ratios 3, 5 and 7, empty sequences. Choices are ordered from simple to hard, so that failures shrink to small
plain cases. Nothing is rejected after it is drawn.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from verify.case import Case, Recipe
from verify.contract import OPTIONAL_FEATURES, Capabilities
from verify.dtypes import STORAGE_DTYPES
from verify.errors import require
from verify.grid.axes import (
    FORMS,
    GRID_RECIPES,
    GROUPS,
    HEAD_DIMS,
    LOW_UNSCALED,
    MASKS,
    ODD_HEAD_DIMS,
    SCORES,
    TILE_EDGES,
    length_fields,
    make_problem,
    mask_fields,
)
from verify.problem import EVERY_LAYOUT, AttentionProblem
from verify.recipes import drawn_recipe_names, recipe_names
from verify.recipes.repeats import PATTERNS

_MASK_NEEDS: dict[str, frozenset[str]] = {"none": frozenset(), "causal_window": frozenset({"causal", "window"})}
_PACKED_FORMS = ("plain", "lengths")
REPEATS = (Recipe.of("repeats"),) * 4
"""One case in ten: its four patterns are drawn apart."""
WIDEST = 256
"""Largest head_dim of fused kernels; no value of the grid beyond one trap."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Space:
    """What may be drawn, after capabilities and arguments are taken together."""

    dtypes: tuple[str, ...]
    features: frozenset[str]
    layouts: tuple[str, ...]
    head_dims: tuple[int, ...]
    max_seqlen: int
    max_batch: int
    max_score_elements: int
    empty: bool

    def allowed(self, names: Sequence[str]) -> tuple[str, ...]:
        """Those of the names that are allowed features."""
        return tuple(name for name in names if name in self.features)


def problems(
    *,
    capabilities: Capabilities | None = None,
    dtypes: Collection[str] = STORAGE_DTYPES,
    features: Collection[str] = OPTIONAL_FEATURES,
    layouts: Collection[str] = EVERY_LAYOUT,
    max_seqlen: int = 160,
    max_batch: int = 4,
    max_score_elements: int = 100_000,
) -> SearchStrategy[AttentionProblem]:
    """Attention problems.

    Parameters
    ----------
    capabilities
        Draw only what these declare. None: everything.
    dtypes, features, layouts
        Narrow the space further; features are the names of verify.contract.OPTIONAL_FEATURES.
    max_seqlen
        Longest sequence.
    max_batch
        Most sequences.
    max_score_elements
        Most batch x nheads x seqlen_q x seqlen_k; the query rows are cut to it.

    Raises
    ------
    UsageError
        When no dtype or layout is left, or a name is unknown.
    """
    space = _space(capabilities or _everything(), dtypes, features, layouts, max_seqlen, max_batch, max_score_elements)
    return _problems(space)


def recipes(*, names: Collection[str] | None = None) -> SearchStrategy[Recipe]:
    """Value recipes, `normal` first. `names` narrows them; capture files are never drawn.

    Raises
    ------
    UsageError
        For an unknown name.
    """
    chosen = tuple(drawn_recipe_names() if names is None else names)
    unknown = sorted(set(chosen) - set(recipe_names()))
    require(not unknown, "names", unknown, "names out of " + ", ".join(recipe_names()))
    fixed = tuple(recipe for recipe in (*GRID_RECIPES, LOW_UNSCALED, *REPEATS) if recipe.name in chosen)
    require(bool(fixed), "names", chosen, "at least one recipe that draws its values")
    return _recipes(fixed)


def seeds() -> SearchStrategy[int]:
    """Seeds of the values; small ones first."""
    return st.integers(0, 2**31 - 1)


def cases(
    *,
    capabilities: Capabilities | None = None,
    recipe_names: Collection[str] | None = None,
    **narrowing: Any,
) -> SearchStrategy[Case]:
    """Cases: a problem, a recipe and a seed. `narrowing` is passed on to `problems`.

    Raises
    ------
    UsageError
        As problems and recipes.
    """
    return _cases(recipes(names=recipe_names), problems(capabilities=capabilities, **narrowing))


def _everything() -> Capabilities:
    return Capabilities(features=OPTIONAL_FEATURES, layouts=frozenset(EVERY_LAYOUT))


def _space(
    capabilities: Capabilities,
    dtypes: Collection[str],
    features: Collection[str],
    layouts: Collection[str],
    max_seqlen: int,
    max_batch: int,
    max_score_elements: int,
) -> _Space:
    unknown = sorted(set(features) - OPTIONAL_FEATURES)
    require(not unknown, "features", unknown, "names out of " + ", ".join(sorted(OPTIONAL_FEATURES)))
    require(max_seqlen >= 1, "max_seqlen", max_seqlen, "an integer >= 1")
    require(max_batch >= 1, "max_batch", max_batch, "an integer >= 1")
    multiple, most = capabilities.head_dim_multiple, capabilities.max_head_dim
    fitting = tuple(dim for dim in (*HEAD_DIMS, *ODD_HEAD_DIMS, WIDEST) if dim % multiple == 0 and dim <= most)
    space = _Space(
        dtypes=tuple(name for name in STORAGE_DTYPES if name in dtypes and name in capabilities.dtypes),
        features=frozenset(features) & capabilities.features,
        layouts=tuple(name for name in EVERY_LAYOUT if name in layouts and name in capabilities.layouts),
        head_dims=fitting or (multiple,),
        max_seqlen=max_seqlen,
        max_batch=max_batch,
        max_score_elements=max_score_elements,
        empty=capabilities.empty,
    )
    require(bool(space.dtypes), "dtypes", sorted(dtypes), "one of " + ", ".join(sorted(capabilities.dtypes)))
    require(bool(space.layouts), "layouts", sorted(layouts), "one of " + ", ".join(sorted(capabilities.layouts)))
    return space


@st.composite
def _cases(draw: DrawFn, recipe: SearchStrategy[Recipe], problem: SearchStrategy[AttentionProblem]) -> Case:
    # The recipe comes first: Hypothesis fills the end of many examples with the simplest choices.
    chosen = draw(recipe)
    return Case(problem=draw(problem), recipe=chosen, seed=draw(seeds()), origin="hypothesis")


@cache
def _any_of(values: tuple[T, ...]) -> SearchStrategy[T]:
    """One of some values. Kept, like the other strategies below: making one anew costs more than drawing from it."""
    return st.sampled_from(values)


@cache
def _few_of(values: tuple[T, ...]) -> SearchStrategy[list[T]]:
    return st.lists(st.sampled_from(values), max_size=2, unique=True)


@cache
def _length_lists(space: _Space, count: int) -> SearchStrategy[list[int]]:
    return st.lists(_lengths(space), min_size=count, max_size=count)


@cache
def _window_side(longest: int) -> SearchStrategy[int | None]:
    return st.one_of(st.none(), st.sampled_from((0, 16)), st.integers(0, longest))


@st.composite
def _recipes(draw: DrawFn, fixed: tuple[Recipe, ...]) -> Recipe:
    recipe: Recipe = draw(_any_of(fixed))
    if recipe.name == "logits" and draw(st.booleans()):
        return Recipe.of("logits", max=float(2 ** draw(st.integers(0, 13))))
    if recipe.name == "needle" and draw(st.booleans()):
        return Recipe.of("needle", position=draw(st.integers(0, 200)))
    if recipe.name == "repeats":
        return Recipe.of("repeats", **{name: draw(_any_of(tuple(PATTERNS))) for name in ("q", "k", "v", "dout")})
    return recipe


@st.composite
def _problems(draw: DrawFn, space: _Space) -> AttentionProblem:
    layout = draw(_any_of(space.layouts))
    forms = FORMS if layout in ("bshd", "sliced", "offset", "strided") else _PACKED_FORMS
    form = draw(_any_of(("plain", *space.allowed(forms))))
    packed = layout == "packed_qkv"
    # Drawn for packed too: Hypothesis prefers few choices, and would shrink to the layout that has fewer of them.
    group = draw(_any_of(GROUPS))
    if packed or "gqa" not in space.features:
        group = 1
    nheads_kv = draw(_any_of((1, 2, 3)))
    head_dim, head_dim_v = draw(_head_dims(space, packed))
    fields: dict[str, Any] = {
        "dtype": draw(_any_of(space.dtypes)),
        "layout": layout,
        "nheads": group * nheads_kv,
        "nheads_kv": nheads_kv,
        "head_dim": head_dim,
        "head_dim_v": head_dim_v,
    }
    rows, keys = draw(_sequence_lengths(space, form, square=packed, heads=group * nheads_kv))
    fields |= length_fields(form, rows, keys, page_size=draw(_any_of((16, 1, 4, 64, 256))))
    fields |= draw(_masks(space))
    fields |= draw(_scores(space))
    if draw(_any_of((False, False, False, True))):
        fields["softmax_scale"] = draw(_any_of((1.0, 0.7, 0.01)))
    return make_problem(**fields)


@cache
@st.composite
def _head_dims(draw: DrawFn, space: _Space, packed: bool) -> tuple[int, int]:
    head_dim = draw(_any_of(space.head_dims))
    same = draw(st.integers(0, 4)) < 4
    if same or packed or "dv" not in space.features:
        return head_dim, head_dim
    return head_dim, draw(_any_of(space.head_dims))


@cache
def _lengths(space: _Space) -> SearchStrategy[int]:
    """Length of one sequence: tiny, at a tile edge, or any."""
    tiny = [length for length in (1, 2, 3, *((0,) if space.empty else ())) if length <= space.max_seqlen]
    edges = [length for length in TILE_EDGES if length <= space.max_seqlen]
    options = [st.sampled_from(tiny), *([st.sampled_from(edges)] if edges else []), st.integers(1, space.max_seqlen)]
    return st.one_of(options)


@cache
@st.composite
def _sequence_lengths(draw: DrawFn, space: _Space, form: str, square: bool, heads: int) -> tuple[list[int], list[int]]:
    """Query rows and keys of each sequence; all rows alike unless ragged."""
    batch = draw(st.integers(1, space.max_batch))
    keys = draw(_length_lists(space, batch))
    limit = space.max_score_elements // (batch * heads * max(1, max(keys)))
    follow = draw(st.booleans())
    if follow or square:
        if square:
            # Equal seqlens are part of the layout, so keys are cut together with the rows.
            side = max(1, int((space.max_score_elements / (batch * heads)) ** 0.5))
            keys = [min(length, side) for length in keys]
            limit = side
        return [min(max(keys), max(1, limit))] * batch, keys
    count = batch if form == "ragged" else 1
    rows = [min(length, max(1, limit)) for length in draw(_length_lists(space, count))]
    return (rows if form == "ragged" else rows * batch), keys


@cache
@st.composite
def _masks(draw: DrawFn, space: _Space) -> dict[str, Any]:
    usable = tuple(mask for mask in MASKS if _MASK_NEEDS.get(mask, frozenset({mask})) <= space.features)
    mask = draw(_any_of(usable))
    side = _window_side(space.max_seqlen)
    fields = mask_fields(mask, (draw(side), draw(side)) if "window" in mask else (None, None))
    if "pattern" in fields:
        fields |= {
            "keep_fraction": draw(_any_of((0.75, 0.3, 1.0, 0.0))),
            "block_size": draw(_any_of(((16, 16), (8, 32), (64, 64)))),
        }
    return fields


@cache
@st.composite
def _scores(draw: DrawFn, space: _Space) -> dict[str, Any]:
    usable = space.allowed(SCORES)
    names = draw(_few_of(usable)) if usable else []
    fields: dict[str, Any] = {}
    if "bias" in names:
        fields |= {"bias": "additive", "bias_broadcast": (draw(st.booleans()), draw(st.booleans()))}
        if "bias_minus_infinity" in space.features:
            fields["bias_hidden"] = draw(_any_of((0.0, 0.0, 0.25, 0.9)))
    if "alibi" in names:
        fields |= {"bias": "alibi", "bias_broadcast": (False, False), "bias_hidden": 0.0}
    if "softcap" in names:
        fields["softcap"] = draw(_any_of((15.0, 50.0, 1.0)))
    if "sink" in names:
        fields["sink"] = True
    if "dropout" in names:
        fields["dropout_p"] = draw(_any_of((0.25, 0.5, 0.9)))
    return fields
