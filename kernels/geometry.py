"""Launch geometry: from the symbolic grid of a pass to numbers."""

from __future__ import annotations

from kernels.kernel import Grid, Tile
from kernels.problem import Sizes

WARP = 32
MAX_GRID_X = 2**31 - 1
MAX_GRID_YZ = 65535
"""Hardware limit of grid.y and grid.z (CUDA C++ Programming Guide, table of technical specifications)."""


def grid_of(grid: Grid, sizes: Sizes, tile: Tile) -> tuple[int, int, int]:
    """(x, y, z) blocks; any extent may be 0, and then there is nothing to launch.

    Raises
    ------
    ValueError
        More blocks along an axis than the hardware takes.
    """
    query = (sizes.nheads, sizes.batch)
    key = (sizes.nheads_kv, sizes.batch)
    bias_batch, bias_heads, bias_rows, bias_cols = sizes.bias
    by = tile.threads
    table = {
        Grid.QUERY_TILES: (_blocks(sizes.seqlen_q, tile.q), *query),
        Grid.KEY_TILES: (_blocks(sizes.seqlen_k, tile.k), *key),
        Grid.BIAS_TILES: (_blocks(bias_cols, tile.k), _blocks(bias_rows, tile.q), bias_batch * bias_heads),
        Grid.QUERY_ROWS: (_blocks(sizes.seqlen_q, by // WARP), *query),
        Grid.PAIRS: (_blocks(sizes.seqlen_q * sizes.seqlen_k, by), *query),
        Grid.OUT_ELEMENTS: (_blocks(sizes.seqlen_q * sizes.head_dim_v, by), *query),
        Grid.DQ_ELEMENTS: (_blocks(sizes.seqlen_q * sizes.head_dim, by), *query),
        Grid.DK_ELEMENTS: (_blocks(sizes.seqlen_k * sizes.head_dim, by), *key),
        Grid.DV_ELEMENTS: (_blocks(sizes.seqlen_k * sizes.head_dim_v, by), *key),
        Grid.BIAS_ELEMENTS: (_blocks(bias_rows * bias_cols, by), bias_heads, bias_batch),
        Grid.HEADS: (sizes.nheads, 1, 1),
    }
    x, y, z = table[grid]
    if x > MAX_GRID_X or max(y, z) > MAX_GRID_YZ:
        raise ValueError(f"grid: {x, y, z} for {grid.value}, expected at most {MAX_GRID_X, MAX_GRID_YZ, MAX_GRID_YZ}")
    return x, y, z


def _blocks(count: int, size: int) -> int:
    return -(-count // size)
