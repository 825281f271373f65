"""Where the wrong elements lie, in words."""

import numpy as np
import pytest

from verify.patterns import constant_factor, describe, error_map

SHAPE = (2, 130, 4, 8)


def _describe(wrong: np.ndarray, factor: float = 2.0) -> str:
    expected = np.random.default_rng(0).standard_normal(SHAPE)
    rng = np.random.default_rng(1)
    got = np.where(wrong, expected + rng.standard_normal(SHAPE), expected) if factor == 0 else factor * expected
    return describe(wrong, got, expected, tensor="out", tile_rows=64)


def test_last_tile_is_named() -> None:
    wrong = np.zeros(SHAPE, bool)
    wrong[:, 128:] = True
    assert "rows 128..129 (last tile of 64)" in _describe(wrong, 0)


def test_one_head_is_named() -> None:
    wrong = np.zeros(SHAPE, bool)
    wrong[:, :, 3] = True
    assert "head 3" in _describe(wrong, 0)


def test_constant_factor_is_named() -> None:
    assert "got = 2 x expected" in _describe(np.ones(SHAPE, bool))


def test_no_factor_for_random_errors() -> None:
    rng = np.random.default_rng(0)
    expected, got = rng.standard_normal((2, 100))
    assert constant_factor(got, expected, np.ones(100, bool)) is None


def test_nothing_wrong_gives_no_pattern() -> None:
    assert _describe(np.zeros(SHAPE, bool)) == ""


@pytest.mark.parametrize("tensor", ["out", "lse"])
def test_error_map_keeps_the_largest_ratio(tensor: str) -> None:
    ratio = np.zeros(SHAPE if tensor == "out" else (2, 4, 130))
    ratio[1, 3] = 9.0
    grid, axes = error_map(ratio, tensor=tensor)
    assert max(map(max, grid)) == 9.0
    assert len(grid) <= 32
    assert axes[0]


def test_error_map_of_an_empty_output_is_one_cell() -> None:
    grid, _ = error_map(np.zeros((0, 4, 8)), tensor="out")
    assert grid == ((0.0,),)
