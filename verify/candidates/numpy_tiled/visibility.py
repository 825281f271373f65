"""Which keys the rows of a tile may attend to and what is added to their scores, worked out tile by tile."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from verify.candidates.numpy_tiled.products import Keep
from verify.candidates.numpy_tiled.rounding import F32, fp32
from verify.candidates.numpy_tiled.sequences import Sequences


def keep_tile(part: Sequences, rows: slice, keys: slice) -> Keep | None:
    """Visible elements of a tile.

    Returns
    -------
    bool array broadcastable to (b, h, rows, keys), or None where nothing is hidden.
    """
    pieces = _diagonal_pieces(part, rows, keys)
    if part.mask is not None:
        pieces.append(part.mask[:, :, rows, keys])
    if part.block_mask is not None:
        height, width = part.problem.block_size
        blocks = part.block_mask[:, :, np.arange(rows.start, rows.stop) // height]
        pieces.append(blocks[..., np.arange(keys.start, keys.stop) // width])
    if part.bias is not None:
        # A bias of -inf hides its key as a mask does.
        pieces.append(part.bias[:, :, rows, keys] != -np.inf)
    if not pieces:
        return None
    keep = pieces[0]
    for piece in pieces[1:]:
        keep = keep & piece
    return None if keep.all() else keep


def bias_tile(part: Sequences, rows: slice, keys: slice) -> F32 | None:
    """Sum of additive bias and ALiBi of a tile: fp32 broadcastable to (b, h, rows, keys), or None."""
    bias = None if part.bias is None else part.bias[:, :, rows, keys]
    if part.alibi_slopes is None:
        return bias
    distance = fp32(np.abs(_distance(part, rows, keys)))
    alibi = -part.alibi_slopes[None, :, None, None] * distance
    return alibi if bias is None else alibi + bias


def _distance(part: Sequences, rows: slice, keys: slice) -> NDArray[np.int64]:
    """Row minus key along the diagonal: positive for keys to the left of it, shape (rows, keys)."""
    shift = part.seqlen_k - part.seqlen_q if part.problem.alignment == "bottom_right" else 0
    return np.arange(rows.start + shift, rows.stop + shift)[:, None] - np.arange(keys.start, keys.stop)


def _diagonal_pieces(part: Sequences, rows: slice, keys: slice) -> list[Keep]:
    p = part.problem
    left, right = p.window if p.window is not None else (None, None)
    pieces = []
    if p.causal or left is not None or right is not None:
        distance = _distance(part, rows, keys)[None, None]
        if p.causal:
            pieces.append(distance >= 0)
        if right is not None:
            pieces.append(distance >= -right)
        if left is not None:
            pieces.append(distance <= left)
    return pieces
