"""Which tiles fit which GPU, from arithmetic alone: no GPU, no compiler.

Shared memory is the only limit looked at; registers are the compiler's business and are gated by its report.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from kernels.kernel import Kernel, Shared, Tile

SHARED_LIMIT_BYTES: Mapping[int, int] = {
    75: 64 * 1024,
    80: 163 * 1024,
    86: 99 * 1024,
    87: 163 * 1024,
    89: 99 * 1024,
    90: 227 * 1024,
    100: 227 * 1024,
    120: 99 * 1024,
}
"""Compute capability -> most shared memory a block can have (CUDA C++ Programming Guide, table of technical
specifications)."""

_FLOAT_BYTES = 4


class TileError(ValueError):
    """A tile, or every tile, does not fit the GPU."""


def shared_limit_bytes(arch: str) -> int:
    """Most dynamic shared memory of one block on `sm_XX` (a suffix such as the a of sm_90a is ignored).

    Raises
    ------
    ValueError
        The architecture is not in the table.
    """
    digits = arch.removeprefix("sm_").rstrip("af")
    if not digits.isdigit() or int(digits) not in SHARED_LIMIT_BYTES:
        known = ", ".join(f"sm_{number}" for number in SHARED_LIMIT_BYTES)
        raise ValueError(f"arch: {arch!r}, expected one of {known}")
    return SHARED_LIMIT_BYTES[int(digits)]


def head_dim_bucket(kernel: Kernel, direction: str, head_dim: int, head_dim_v: int) -> int:
    """Smallest declared bucket that holds both head dims; 0 where the kernel takes any.

    Raises
    ------
    ValueError
        The head dims exceed the largest bucket.
    """
    buckets = sorted(kernel.direction(direction).tiles)
    if buckets == [0]:
        return 0
    widest = max(head_dim, head_dim_v)
    for bucket in buckets:
        if widest <= bucket:
            return bucket
    raise ValueError(f"head_dim: {widest}, expected at most {buckets[-1]} for {kernel.name}")


def shared_bytes(shared: Shared, bucket: int, tile: Tile) -> int:
    """Dynamic shared memory of one pass in bytes; the formulas stand in the header of the sources."""
    dim_pitch = bucket + 1
    pairs = tile.q * (tile.k + 1)
    floats = {
        Shared.NONE: 0,
        Shared.THREADS: tile.threads,
        Shared.FORWARD: (tile.q + 2 * tile.k) * dim_pitch + pairs,
        Shared.BACKWARD: 2 * (tile.q + tile.k) * dim_pitch + 2 * pairs + 2 * tile.q,
        Shared.BACKWARD_BIAS: 2 * (tile.q + tile.k) * dim_pitch + 3 * pairs + 2 * tile.q,
    }
    return floats[shared] * _FLOAT_BYTES


def tile_bytes(kernel: Kernel, direction: str, bucket: int, tile: Tile) -> int:
    """The most shared memory that any pass of the direction needs with this tile, in bytes."""
    return max(shared_bytes(step.shared, bucket, tile) for step in kernel.direction(direction).passes)


def fitting_tiles(kernel: Kernel, direction: str, bucket: int, limit_bytes: int) -> tuple[Tile, ...]:
    """The declared tiles that fit, the preferred one first."""
    tiles = kernel.direction(direction).tiles[bucket]
    return tuple(tile for tile in tiles if tile_bytes(kernel, direction, bucket, tile) <= limit_bytes)


def check_shape(tile: Tile, bucket: int) -> None:
    """Refuse a tile that the sources cannot be compiled for (their static_asserts say the same).

    Raises
    ------
    TileError
        One line with the broken rule.
    """
    if tile.threads not in (32, 64, 128, 256, 512, 1024):
        raise TileError(f"tile: {tile}, expected a power of two of threads between 32 and 1024")
    if not bucket:
        return
    threads_x = min(tile.k, 16)
    if threads_x < 1 or 32 % threads_x:
        raise TileError(f"tile: {tile}, expected k = 1, 2, 4, 8 or a multiple of 16")
    threads_y = tile.threads // threads_x
    if tile.q % threads_y or tile.k % threads_y or tile.k % threads_x or bucket % threads_x:
        raise TileError(f"tile: {tile}, expected q and k to be multiples of {threads_y} (threads / min(k, 16))")
    if tile.q * tile.k > 32 * tile.threads:
        raise TileError(f"tile: {tile}, expected at most 32 pairs a thread, got {tile.q * tile.k // tile.threads}")


def sweep_tiles(
    kernel: Kernel,
    direction: str,
    bucket: int,
    arch: str,
    *,
    q_sizes: Sequence[int] = (16, 32, 64, 128),
    k_sizes: Sequence[int] = (16, 32, 64, 128),
    threads: Sequence[int] = (64, 128, 256),
) -> tuple[Tile, ...]:
    """Every tile of the grid that the threads can cover and that fits `arch`: the candidates of a tile sweep."""
    found = []
    for q, k, count in itertools.product(q_sizes, k_sizes, threads):
        tile = Tile(q=q, k=k, threads=count)
        try:
            check_tile(kernel, direction, bucket, tile, arch)
        except TileError:
            continue
        found.append(tile)
    return tuple(found)


def check_tile(kernel: Kernel, direction: str, bucket: int, tile: Tile, arch: str) -> None:
    """Refuse a tile that does not fit.

    Raises
    ------
    TileError
        One line: the need, the limit, and the tiles that fit.
    """
    check_shape(tile, bucket)
    needed, limit = tile_bytes(kernel, direction, bucket, tile), shared_limit_bytes(arch)
    if needed > limit:
        fitting = ", ".join(f"{t.q}x{t.k}" for t in fitting_tiles(kernel, direction, bucket, limit)) or "none"
        raise TileError(
            f"tile: {tile.q}x{tile.k} of {kernel.name} {direction} at head dim {bucket} needs {needed} bytes of shared "
            f"memory, expected at most {limit} on {arch}; tiles that fit: {fitting}"
        )


def default_tile(kernel: Kernel, direction: str, bucket: int, arch: str) -> Tile:
    """The preferred tile among those that fit.

    Raises
    ------
    TileError
        No declared tile fits.
    """
    fitting = fitting_tiles(kernel, direction, bucket, shared_limit_bytes(arch))
    if not fitting:
        smallest = kernel.direction(direction).tiles[bucket][-1]
        check_tile(kernel, direction, bucket, smallest, arch)
    return fitting[0]
