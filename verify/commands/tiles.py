"""`tiles`: which tiles of the kernels fit the shared memory of an architecture."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from kernels.registry import KERNELS
from kernels.tiles import shared_limit_bytes, tile_bytes
from verify.commands.common import print_json
from verify.errors import UsageError


def tiles_command(*, arch: str, as_json: bool) -> None:
    """Print every declared tile with the shared memory that it needs and whether it fits.

    Raises
    ------
    UsageError
        Unknown architecture.
    """
    try:
        limit = shared_limit_bytes(arch)
    except ValueError as error:
        raise UsageError(str(error)) from error
    rows = tile_rows(limit)
    if as_json:
        print_json({"arch": arch, "limit_bytes": limit, "tiles": rows})
        return
    table = Table(title=f"{arch}: {limit} bytes of shared memory a block", title_justify="left", box=None)
    for column in rows[0]:
        table.add_column(column, no_wrap=True)
    for row in rows:
        style = "" if row["fits"] else "dim"
        table.add_row(*(_text(value) for value in row.values()), style=style)
    Console().print(table)


def tile_rows(limit_bytes: int) -> list[dict[str, Any]]:
    """One row a kernel, direction, head-dim bucket and tile; `default` is the tile that a launch takes by default."""
    rows = []
    for kernel in KERNELS.values():
        for direction in ("forward", "backward"):
            for bucket, choices in kernel.direction(direction).tiles.items():
                needs = [tile_bytes(kernel, direction, bucket, tile) for tile in choices]
                first = next((place for place, need in enumerate(needs) if need <= limit_bytes), None)
                rows += [
                    {
                        "kernel": kernel.name,
                        "direction": direction,
                        "head_dim": f"<= {bucket}" if bucket else "any",
                        "tile": f"{tile.q}x{tile.k}",
                        "threads": tile.threads,
                        "bytes": need,
                        "fits": need <= limit_bytes,
                        "default": place == first,
                    }
                    for place, (tile, need) in enumerate(zip(choices, needs, strict=True))
                ]
    return rows


def _text(value: object) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
