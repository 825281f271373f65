"""Named value designs: what q, k, v and dout look like. Registers every recipe; places nothing in memory."""

from verify.recipes import captured, gaussian, pinned, ranges, repeats, scores, values
from verify.recipes.draw import Draw, Operands
from verify.recipes.registry import (
    RecipeInfo,
    check_recipe,
    describe,
    design,
    drawn_recipe_names,
    recipe_info,
    recipe_names,
)

__all__ = [
    "Draw",
    "Operands",
    "RecipeInfo",
    "captured",
    "check_recipe",
    "describe",
    "design",
    "drawn_recipe_names",
    "gaussian",
    "pinned",
    "ranges",
    "recipe_info",
    "recipe_names",
    "repeats",
    "scores",
    "values",
]
