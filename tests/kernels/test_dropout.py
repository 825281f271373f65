"""Dropout: one mask for kernels, read-back and NumPy, and a generator that matches its published vectors."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from kernels.dropout import drop_threshold, dropout_keep_mask, philox4x32
from kernels.host_backend import HostBackend
from kernels.kernel import Kernel
from kernels.launch import dropout_mask, forward
from kernels.options import Options
from tests.kernels.support import KERNELS, assert_no_faults, small_tile

# Known answers of philox4x32-10 from the authors' library Random123 (kat_vectors): counter, key, result.
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_generator_matches_the_published_vectors(
    counter: tuple[int, ...], key: tuple[int, int], expected: tuple[int, ...]
) -> None:
    a, b, c, d = (np.array(word, np.uint64) for word in counter)
    assert tuple(int(word) for word in philox4x32((a, b, c, d), key)) == expected


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 3, 7, 13), (1, 2, 33, 64), (2, 1, 0, 5)])
@pytest.mark.parametrize(("seed", "offset"), [(0, 0), (2**63 + 12345, 2**32 - 1)])
def test_the_kernel_draws_the_mask_that_numpy_draws(
    cpu: HostBackend, shape: tuple[int, int, int, int], seed: int, offset: int
) -> None:
    drawn = dropout_mask(cpu, 0.4, shape, seed=seed, offset=offset)
    assert_no_faults(cpu)
    assert_array_equal(drawn.astype(bool), dropout_keep_mask(0.4, shape, seed=seed, offset=offset))


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_forward_drops_exactly_the_masked_pairs(kernel: Kernel, cpu: HostBackend) -> None:
    """With V = identity, out is the dropped softmax itself; uniform scores make every kept entry 1 / (n (1 - p))."""
    n = 24
    q = np.zeros((2, n, 2, 4), np.float32)
    v = np.broadcast_to(np.eye(n, dtype=np.float32)[:, None], (2, n, 2, n))
    options = Options(dropout_p=0.25, dropout_seed=99, dropout_offset=3)
    out, _ = forward(kernel, cpu, q, q, v, options=options, tile=small_tile(kernel))
    keep = dropout_keep_mask(0.25, (2, 2, n, n), seed=99, offset=3)
    assert_array_equal(out.swapaxes(1, 2) > 0, keep)


def test_keep_rate_is_that_asked_for() -> None:
    """4 standard deviations of a binomial count: fails for an honest generator once in 16,000 choices of the seed."""
    n = 2**18
    kept = int(dropout_keep_mask(0.3, (1, 1, 512, 512), seed=1).sum())
    assert abs(kept - 0.7 * n) < 4 * (0.21 * n) ** 0.5


def test_neighbouring_heads_rows_and_offsets_draw_different_masks() -> None:
    base = dropout_keep_mask(0.5, (1, 2, 2, 64), seed=5)
    other = dropout_keep_mask(0.5, (1, 2, 2, 64), seed=5, offset=1)
    assert len({base[0, h, r].tobytes() for h in range(2) for r in range(2)}) == 4
    assert not np.array_equal(base, other)


def test_threshold_is_zero_only_without_dropout() -> None:
    assert drop_threshold(0.0) == 0
    assert drop_threshold(0.5) == 2**31
    assert drop_threshold(1 - 2**-40) == 2**32 - 1


@pytest.mark.parametrize(("p", "seed"), [(1.0, 0), (-0.1, 0), (0.5, -1), (0.5, 2**64)])
def test_what_the_generator_cannot_hold_is_refused(p: float, seed: int) -> None:
    with pytest.raises(ValueError, match="expected 0 <="):
        dropout_keep_mask(p, (1, 1, 1, 1), seed=seed)
