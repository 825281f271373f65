"""Values for the probes: what makes out show P itself, one key, the row sum, or a key that should not be there.

Every design keeps the case's problem, and its masks, biases, sinks and lengths, and replaces q, k, v or dout only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verify.case import Recipe
from verify.checks.case_run import CaseRun
from verify.checks.places import key_index, row_index
from verify.checks.variation import Values, logical_values, vary, with_inputs
from verify.inputs import make_inputs

Array = NDArray[Any]

NEEDLE_SCORE = 12.0
"""Score of a row with its own needle: e^12 outweighs the other keys, and exp(12) is far from every overflow."""
OVERWHELMING_SCORE = 150.0
"""e^-150 is 0 in fp32: a row that sees its own needle sees nothing else, and out is the needle's value."""
MARKER = 4.0
"""Value of the needles in v, against N(0, 1) elsewhere."""
TILES = (16, 32, 64, 128)
"""Tile sizes whose edges carry needles where the candidate declares none."""


def _fill(run: CaseRun, values: Values, name: str, build: Callable[[int, int], Array]) -> None:
    """Write build(sequence, place) into every valid row (q, dout) or key (k, v) of the case."""
    problem = run.case.problem
    keys = name in ("k", "v")
    for sequence in range(problem.batch):
        for place in range(problem.lengths(sequence)[1 if keys else 0]):
            index = key_index(problem, values, sequence, place) if keys else row_index(problem, sequence, place)
            values[name][index] = build(sequence, place)


def identity_block(run: CaseRun, start: int) -> CaseRun:
    """v of keys start..start+head_dim_v-1 is a block of the identity, 0 elsewhere: out is P of these keys."""
    values, width = logical_values(run), run.case.problem.head_dim_v
    rows = np.vstack([np.eye(width), np.zeros((1, width))])
    _fill(run, values, "v", lambda sequence, key: rows[key - start if start <= key < start + width else width])
    return vary(run, values)


def folded_identity(run: CaseRun) -> CaseRun:
    """v of key j and dout of row i are unit vectors j and i modulo head_dim_v: sums of P over residues, both ways."""
    values, width = logical_values(run), run.case.problem.head_dim_v
    rows = np.eye(width)
    _fill(run, values, "v", lambda sequence, key: rows[key % width])
    _fill(run, values, "dout", lambda sequence, row: rows[row % width])
    return vary(run, values)


def unit_values(run: CaseRun) -> CaseRun:
    """v = 1: out is the sum of the rounded P over the row sum, 1 wherever a row sees a key."""
    values = logical_values(run)
    _fill(run, values, "v", lambda sequence, key: np.ones(1))
    return vary(run, values)


def zero_queries(run: CaseRun) -> CaseRun:
    """q = 0: every score is 0 before bias, so out is a plain mean, lse = ln n and dk = 0."""
    values = logical_values(run)
    values["q"][...] = 0
    return vary(run, values)


def needle_keys(run: CaseRun) -> tuple[int, ...]:
    """First, last and both sides of every tile edge, of the longest sequence."""
    problem = run.case.problem
    longest = max(problem.lengths(sequence)[1] for sequence in range(problem.batch))
    tile = run.arithmetic.tile_k
    edges = {edge for size in ((tile,) if tile else TILES) for edge in range(size, longest, size)}
    found = {0, longest - 1} | {key for edge in edges for key in (edge - 1, edge)}
    # More needles than distinct directions would hide each other: the last ones matter most.
    return tuple(sorted(found, reverse=True)[: max(2, problem.head_dim // 2)])


def needles(run: CaseRun, score: float = NEEDLE_SCORE) -> CaseRun:
    """Each row looks for one needle key, which stands out by that score and carries the marker value in v."""
    problem, values = run.case.problem, logical_values(run)
    keys = needle_keys(run)
    random = np.random.Generator(np.random.PCG64(run.case.seed))
    # Normal, not of one magnitude: sums of equal products round coherently, and the bound counts on independence.
    directions = random.standard_normal((len(keys), problem.head_dim))
    directions *= np.sqrt(score / problem.softmax_scale / (directions**2).sum(axis=1, keepdims=True))
    place = {key: number for number, key in enumerate(keys)}
    noise = random.standard_normal((problem.seqlen_k, problem.head_dim + problem.head_dim_v))
    k_noise, v_noise = 0.1 * noise[:, : problem.head_dim], noise[:, problem.head_dim :]
    _fill(run, values, "k", lambda _, key: directions[place[key]] if key in place else k_noise[key])
    _fill(run, values, "v", lambda _, key: np.full(1, MARKER + place[key]) if key in place else v_noise[key])
    rows = [problem.lengths(sequence)[0] for sequence in range(problem.batch)]
    # The last row looks for the last key, so that under a causal mask needles are in sight.
    _fill(run, values, "q", lambda sequence, row: directions[(rows[sequence] - 1 - row) % len(keys)])
    return vary(run, values)


def designed(recipe: Recipe) -> Callable[[CaseRun], CaseRun]:
    """The case with the values of another recipe."""

    def build(run: CaseRun) -> CaseRun:
        case = replace(run.case, recipe=recipe)
        return with_inputs(run, case, make_inputs(case))

    return build
