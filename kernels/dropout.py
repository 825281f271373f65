"""The dropout mask that the kernels draw, in NumPy, bit for bit (kernels/cuda/philox.cuh is its CUDA twin)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_WORD = 0xFFFFFFFF

Words = NDArray[np.uint64]


def drop_threshold(dropout_p: float) -> int:
    """A 32-bit draw under this number is dropped: round(p * 2^32). 0 means no dropout.

    Raises
    ------
    ValueError
        p outside of [0, 1).
    """
    if not 0.0 <= dropout_p < 1.0:
        raise ValueError(f"dropout_p: {dropout_p!r}, expected 0 <= p < 1")
    return min(round(dropout_p * 2**32), _WORD)


def philox4x32(counter: tuple[Words, Words, Words, Words], key: tuple[int, int]) -> tuple[Words, Words, Words, Words]:
    """Philox4x32-10: four 32-bit words (held in uint64) of each counter.

    References
    ----------
    Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    """
    x0, x1, x2, x3 = counter
    key_0, key_1 = key
    word, high = np.uint64(_WORD), np.uint64(32)
    for _ in range(_ROUNDS):
        product_0, product_1 = x0 * np.uint64(_MULTIPLIERS[0]), x2 * np.uint64(_MULTIPLIERS[1])
        x0, x1, x2, x3 = (
            (product_1 >> high) ^ x1 ^ np.uint64(key_0),
            product_1 & word,
            (product_0 >> high) ^ x3 ^ np.uint64(key_1),
            product_0 & word,
        )
        key_0, key_1 = (key_0 + _WEYL[0]) & _WORD, (key_1 + _WEYL[1]) & _WORD
    return x0, x1, x2, x3


def dropout_keep_mask(
    dropout_p: float, shape: tuple[int, int, int, int], *, seed: int, offset: int = 0
) -> NDArray[np.bool_]:
    """Which probabilities survive.

    Parameters
    ----------
    dropout_p : probability of dropping, 0 <= p < 1
    shape : (batch, nheads, seqlen_q, seqlen_k)
    seed : 64-bit key
    offset : 32-bit stream number: another layer or step under the same seed

    Returns
    -------
    bool array of `shape`, True = kept

    Notes
    -----
    Key = seed. Counter = (column // 4, row, batch * nheads + head, offset); word column % 4 is the pair's draw.
    """
    batch, nheads, seqlen_q, seqlen_k = shape
    check_seed(seed, offset)
    threshold = drop_threshold(dropout_p)
    col = np.arange((seqlen_k + 3) // 4, dtype=np.uint64)
    row = np.arange(seqlen_q, dtype=np.uint64)[:, None]
    batch_head = np.arange(batch * nheads, dtype=np.uint64)[:, None, None]
    counter = tuple(np.broadcast_arrays(col, row, batch_head, np.uint64(offset)))
    words = np.stack(philox4x32(_four(counter), (seed & _WORD, seed >> 32)), axis=-1)
    draws = words.reshape(batch, nheads, seqlen_q, words.shape[-2] * 4)[..., :seqlen_k]
    keep: NDArray[np.bool_] = draws >= np.uint64(threshold)
    return keep


def check_seed(seed: int, offset: int) -> None:
    """Refuse what the generator's key and counter cannot hold."""
    if not 0 <= seed < 2**64:
        raise ValueError(f"dropout_seed: {seed!r}, expected 0 <= seed < 2^64")
    if not 0 <= offset < 2**32:
        raise ValueError(f"dropout_offset: {offset!r}, expected 0 <= offset < 2^32")


def _four(words: tuple[Any, ...]) -> tuple[Words, Words, Words, Words]:
    x0, x1, x2, x3 = words
    return x0, x1, x2, x3
