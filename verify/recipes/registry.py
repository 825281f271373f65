"""Name -> recipe: parameters with defaults, one-line description, fault class. Refuses unknown names and parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from verify.case import Case, ParamValue, Recipe
from verify.errors import require
from verify.recipes.draw import Draw, Operands, share

Build = Callable[..., Operands]
GIVEN_VALUES = ("capture", "pinned")
"""Recipes whose values are given, not drawn: they belong to no grid and to no strategy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeInfo:
    """One registered recipe."""

    name: str
    summary: str
    """What the values look like, one line."""
    targets: str
    """Class of kernel fault that the design brings to light."""
    defaults: Mapping[str, ParamValue]
    """Parameters and their defaults; a number takes numbers, a text takes text or an integer."""
    build: Build

    def parameters(self, recipe: Recipe) -> dict[str, Any]:
        """Defaults overridden by the parameters of the recipe.

        Raises
        ------
        UsageError
            For a parameter that the recipe does not have, or of the wrong kind.
        """
        known = ", ".join(self.defaults) or "no parameters"
        merged: dict[str, Any] = dict(self.defaults)
        for key, value in recipe.params:
            require(key in merged, f"recipe {self.name}", key, known)
            is_text = isinstance(self.defaults[key], str)
            number = isinstance(value, int | float) and math.isfinite(value)
            fits = isinstance(value, str | int) if is_text else number
            require(fits, f"{self.name}:{key}", value, "text or an integer" if is_text else "a finite number")
            merged[key] = value
        return merged


_RECIPES: dict[str, RecipeInfo] = {}


def recipe(name: str, summary: str, targets: str, **defaults: ParamValue) -> Callable[[Build], Build]:
    """Decorator that registers `build(draw, **parameters)` under a name."""

    def register(build: Build) -> Build:
        require(name not in _RECIPES, "recipe", name, "a name that is not registered yet")
        _RECIPES[name] = RecipeInfo(name=name, summary=summary, targets=targets, defaults=defaults, build=build)
        return build

    return register


def recipe_names() -> tuple[str, ...]:
    """Names of all recipes, in alphabetical order."""
    return tuple(sorted(_RECIPES))


def drawn_recipe_names() -> tuple[str, ...]:
    """Names of the recipes that make values from a seed; the others read them from a file or the case id."""
    return tuple(name for name in recipe_names() if name not in GIVEN_VALUES)


def recipe_info(name: str) -> RecipeInfo:
    """The recipe of that name; UsageError for an unknown one."""
    require(name in _RECIPES, "recipe", name, "one of " + ", ".join(recipe_names()))
    return _RECIPES[name]


def check_recipe(recipe: Recipe) -> None:
    """Refuse a recipe whose name or parameters are unknown."""
    recipe_info(recipe.name).parameters(recipe)


def describe() -> list[RecipeInfo]:
    """All recipes in the order of their names, for listings."""
    return [_RECIPES[name] for name in recipe_names()]


def design(case: Case) -> Operands:
    """q, k, v, dout of the case in fp64, padded, not yet rounded to the storage dtype.

    Raises
    ------
    UsageError
        For an unknown recipe, parameter or value of one.
    """
    info = recipe_info(case.recipe.name)
    operands = info.build(Draw(problem=case.problem, seed=case.seed), **info.parameters(case.recipe))
    share(case.problem, operands.k)
    share(case.problem, operands.v)
    return operands
