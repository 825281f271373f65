"""Search for false alarms among operands that repeat themselves: long, plain problems of the recipe `repeats`.

Where equal numbers have equal rounding errors a bound that takes them for independent is too small. Random cases hardly
reach it: it takes hundreds of rows, keys or channels that are alike, and few other features.

    python benchmarks/design_search.py --designs 300 --seed 1
"""

from __future__ import annotations

from typing import Any

import click
import numpy as np
from false_alarms import Campaign

from verify.candidates.numpy_tiled.variants import VARIANTS
from verify.case import Case, Recipe
from verify.grid.axes import make_problem
from verify.recipes.repeats import PATTERNS

LENGTHS = (1, 3, 17, 40, 130, 300, 1100)
HEAD_DIMS = (1, 2, 8, 16, 64, 128, 256)
MOST_SCORES = 20_000
"""Rows x keys of one head; beyond it the rows are cut to 17."""
VARIANTS_A_DESIGN = 3


def design(number: int) -> Case:
    """The design of that number: shapes, one or two features, and a pattern for each operand."""
    random = np.random.default_rng(number)

    def one(choices: tuple[Any, ...]) -> Any:
        return choices[int(random.integers(len(choices)))]

    head_dim, rows, keys, kv_heads = one(HEAD_DIMS), one(LENGTHS), one(LENGTHS), one((1, 1, 2))
    if rows * keys > MOST_SCORES:
        rows = 17
    fields: dict[str, Any] = {
        "dtype": one(("fp16", "bf16", "fp32")),
        "seqlen_q": rows,
        "seqlen_k": keys,
        "nheads": kv_heads * one((1, 1, 3)),
        "nheads_kv": kv_heads,
        "head_dim": head_dim,
        "head_dim_v": one((head_dim, head_dim, 1, 64, 256)),
        "softmax_scale": one((head_dim**-0.5, 1.0, 0.3, 0.01)),
        "sink": bool(random.random() < 0.3),
        "causal": bool(random.random() < 0.2),
        "softcap": one((1.0, 15.0, 50.0)) if random.random() < 0.15 else 0.0,
        "dropout_p": one((0.25, 0.9)) if random.random() < 0.15 else 0.0,
        "bias": one(("additive", "alibi")) if random.random() < 0.15 else "none",
    }
    names = tuple(PATTERNS)
    recipe = Recipe.of("repeats", q=one(names), k=one(names), v=one(names), dout=one(names))
    return Case(problem=make_problem(**fields), recipe=recipe, seed=number)


@click.command()
@click.option("--designs", default=300, help="Designs, each on three arithmetics.")
@click.option("--seed", default=0, help="Number of the first design, in millions.")
def main(designs: int, seed: int) -> None:
    """Run the search and print the report of `false_alarms`; exit status 1 on any violation."""
    campaign = Campaign()
    for number in range(seed * 1_000_000, seed * 1_000_000 + designs):
        case = design(number)
        chosen = np.random.default_rng([number, 1]).choice(sorted(VARIANTS), VARIANTS_A_DESIGN, replace=False)
        for variant in chosen:
            campaign.judge(case, f"numpy_tiled:{variant}")
    click.echo(campaign.report())
    raise SystemExit(bool(campaign.violations))


if __name__ == "__main__":
    main()
