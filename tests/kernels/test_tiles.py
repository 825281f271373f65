"""Tiles are chosen and refused by arithmetic alone, before anything is launched."""

from __future__ import annotations

import numpy as np
import pytest

from kernels.host_backend import HostBackend
from kernels.kernel import Tile
from kernels.launch import forward
from kernels.registry import TILED
from kernels.tiles import (
    SHARED_LIMIT_BYTES,
    TileError,
    check_tile,
    default_tile,
    fitting_tiles,
    head_dim_bucket,
    shared_limit_bytes,
    sweep_tiles,
    tile_bytes,
)
from references.options import AttentionOptions
from tests.kernels.support import assert_agrees, run, stored
from tests.references.problems import plain_problem

BIG = Tile(q=64, k=64, threads=256)


@pytest.mark.parametrize("arch", [f"sm_{number}" for number in SHARED_LIMIT_BYTES])
@pytest.mark.parametrize("bucket", TILED.forward.tiles)
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_every_arch_has_a_default_tile_that_fits(arch: str, bucket: int, direction: str) -> None:
    tile = default_tile(TILED, direction, bucket, arch)
    check_tile(TILED, direction, bucket, tile, arch)
    assert tile_bytes(TILED, direction, bucket, tile) <= shared_limit_bytes(arch)


def test_shared_memory_formula_by_hand() -> None:
    """64 x 64 tiles at head dim 64: (64 + 2 * 64) rows of 65 floats and 64 rows of 65 floats, 4 bytes each."""
    assert tile_bytes(TILED, "forward", 64, BIG) == 4 * (192 * 65 + 64 * 65)


def test_a_tile_too_large_for_an_old_gpu_is_refused_with_the_figures() -> None:
    with pytest.raises(TileError, match=r"64x64 .* needs 66560 bytes .* at most 65536 on sm_75; .*32x64"):
        check_tile(TILED, "forward", 64, BIG, "sm_75")
    check_tile(TILED, "forward", 64, BIG, "sm_86")


def test_a_refused_tile_launches_nothing() -> None:
    backend = HostBackend(arch="sm_75")
    q = np.zeros((1, 4, 1, 64), np.float32)
    with pytest.raises(TileError, match="expected at most 65536 on sm_75"):
        forward(TILED, backend, q, q, q, tile=BIG)
    assert backend.take_reports() == []


def test_the_default_tile_shrinks_with_the_limit() -> None:
    tiles = [default_tile(TILED, "forward", 256, arch) for arch in ("sm_90", "sm_86", "sm_75")]
    areas = [tile.q * tile.k for tile in tiles]
    assert areas == sorted(areas, reverse=True)
    assert areas[0] > areas[-1]


@pytest.mark.parametrize(
    "tile",
    [
        Tile(q=64, k=24, threads=256),
        Tile(q=24, k=16, threads=256),
        Tile(q=64, k=64, threads=100),
        Tile(q=128, k=128, threads=256),
        Tile(q=16, k=3, threads=128),
        Tile(q=48, k=48, threads=96),
        Tile(q=64, k=0, threads=128),
    ],
)
def test_a_tile_that_the_threads_cannot_cover_is_refused(tile: Tile) -> None:
    with pytest.raises(TileError, match="expected"):
        check_tile(TILED, "forward", 32, tile, "sm_90")


def test_no_fitting_tile_lists_none() -> None:
    assert fitting_tiles(TILED, "forward", 256, 1024) == ()


def test_unknown_arch_and_oversized_head_dim_are_refused() -> None:
    with pytest.raises(ValueError, match="arch: 'sm_30'"):
        shared_limit_bytes("sm_30")
    with pytest.raises(ValueError, match="head_dim: 257, expected at most 256"):
        head_dim_bucket(TILED, "forward", 257, 8)
    assert shared_limit_bytes("sm_90a") == shared_limit_bytes("sm_90")


def test_a_sweep_holds_the_tiles_that_fit_and_more_on_a_larger_gpu() -> None:
    old, new = (set(sweep_tiles(TILED, "forward", 128, arch)) for arch in ("sm_75", "sm_90"))
    assert old < new
    assert all(tile_bytes(TILED, "forward", 128, tile) <= shared_limit_bytes("sm_75") for tile in old)


@pytest.mark.parametrize(
    "tile", sweep_tiles(TILED, "backward", 32, "sm_90", q_sizes=(16, 64), k_sizes=(16, 64), threads=(128,))
)
def test_every_swept_tile_gives_right_numbers_backward_too(cpu: HostBackend, tile: Tile) -> None:
    options = AttentionOptions(softmax_scale=0.5, causal=True)
    problem = stored(
        plain_problem(11, batch=1, seqlen_q=70, seqlen_k=75, nheads=2, nheads_kv=1, options=options), "fp32"
    )
    assert_agrees(run(TILED, cpu, problem, tile), problem, "fp32")
