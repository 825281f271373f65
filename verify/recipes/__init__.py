"""Named value designs: what q, k, v and dout look like. Registers every recipe; places nothing in memory."""

from verify.recipes import captured, gaussian, ranges, scores, values
from verify.recipes.draw import Draw, Operands
from verify.recipes.registry import RecipeInfo, check_recipe, describe, design, recipe_info, recipe_names

__all__ = [
    "Draw",
    "Operands",
    "RecipeInfo",
    "captured",
    "check_recipe",
    "describe",
    "design",
    "gaussian",
    "ranges",
    "recipe_info",
    "recipe_names",
    "scores",
    "values",
]
