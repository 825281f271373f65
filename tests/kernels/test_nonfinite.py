"""NaN and infinity: what a row may see reaches it, what is hidden from it does not, in both directions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from kernels.host_backend import HostBackend
from kernels.kernel import Kernel
from references.options import AttentionExtras, AttentionOptions
from tests.kernels.support import KERNELS, expected_outputs, run, small_tile, stored
from tests.references.problems import Problem, plain_problem

POISONS = [np.nan, np.inf, -np.inf]


def masked_problem(seed: int = 0, *, hidden_key: int = 13, hidden_row: int = 9) -> Problem:
    """Key `hidden_key` is hidden from every row and row `hidden_row` sees no key."""
    mask = np.random.Generator(np.random.PCG64(seed)).random((2, 1, 20, 24)) < 0.7
    mask[:, :, hidden_row] = False
    mask[:, :, :, hidden_key] = False
    extras, options = AttentionExtras(mask=mask), AttentionOptions(softmax_scale=0.7)
    return stored(plain_problem(seed, seqlen_q=20, seqlen_k=24, options=options, extras=extras), "fp32")


def poisoned(problem: Problem, name: str, position: int, value: float) -> Problem:
    getattr(problem, name)[:, position] = value
    return problem


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("value", POISONS)
def test_hidden_poison_changes_no_bit_backward_too(kernel: Kernel, cpu: HostBackend, value: float) -> None:
    clean = run(kernel, cpu, masked_problem(), small_tile(kernel))
    problem = masked_problem()
    for name, position in (("k", 13), ("v", 13), ("q", 9), ("dout", 9)):
        problem = poisoned(problem, name, position, value)
    problem.dlse[:, :, 9] = value
    dirty = run(kernel, cpu, problem, small_tile(kernel))
    for name, array in dirty.items():
        assert_array_equal(array, clean[name], err_msg=name)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("name", ["q", "k", "v", "dout"])
def test_visible_nan_is_where_the_reference_has_it_backward_too(kernel: Kernel, cpu: HostBackend, name: str) -> None:
    problem = poisoned(masked_problem(1), name, 5, np.nan)
    got, expected = run(kernel, cpu, problem, small_tile(kernel)), expected_outputs(problem)
    assert any(np.isnan(array).any() for array in expected.values())
    for output in ("out", "lse", "dq", "dk", "dv"):
        assert_array_equal(np.isnan(got[output]), np.isnan(expected[output]), err_msg=output)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_padding_may_hold_nan_backward_too(kernel: Kernel, cpu: HostBackend) -> None:
    def padded(value: float) -> dict[str, Any]:
        extras = AttentionExtras(seqlens_q=np.array([20, 7]), seqlens_k=np.array([3, 24]))
        problem = stored(plain_problem(2, seqlen_q=20, seqlen_k=24, extras=extras), "fp32")
        problem.q[1, 7:] = problem.dout[1, 7:] = problem.k[0, 3:] = problem.v[0, 3:] = value
        problem.dlse[1, :, 7:] = value
        return run(kernel, cpu, problem, small_tile(kernel))

    clean, dirty = padded(0.5), padded(np.nan)
    for name, array in dirty.items():
        assert_array_equal(array, clean[name], err_msg=name)
    assert (dirty["out"][1, 7:] == 0).all()
    assert (dirty["lse"][1, :, 7:] == -np.inf).all()


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_a_row_whose_every_visible_score_is_nan_is_nan(kernel: Kernel, cpu: HostBackend) -> None:
    problem = stored(plain_problem(3, seqlen_q=3, seqlen_k=20), "fp32")
    problem.q[:, 1] = np.nan
    got = run(kernel, cpu, problem, small_tile(kernel))
    assert np.isnan(got["out"][:, 1]).all()
    assert np.isnan(got["lse"][:, :, 1]).all()
    assert np.isfinite(got["out"][:, [0, 2]]).all()


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize(
    ("name", "where", "value"),
    [("k", slice(None), -np.inf), ("k", 2, -np.inf), ("k", 2, np.inf), ("v", 2, np.inf), ("q", 1, -np.inf)],
)
def test_infinite_scores_end_where_the_reference_has_them_backward_too(
    kernel: Kernel, cpu: HostBackend, name: str, where: int | slice, value: float
) -> None:
    """Positive queries make the scores of an infinite key infinite; a row of -inf scores has no softmax: NaN."""
    options = AttentionOptions(softmax_scale=0.5)
    problem = stored(plain_problem(4, seqlen_q=3, seqlen_k=20, head_dim=2, options=options), "fp32")
    problem.q[...] = np.abs(problem.q) + 0.1
    problem.k[...] = np.abs(problem.k) + 0.1
    getattr(problem, name)[:, where] = value
    got, expected = run(kernel, cpu, problem, small_tile(kernel)), expected_outputs(problem)
    for output, reference in expected.items():
        special = ~np.isfinite(reference)
        assert_array_equal(~np.isfinite(got[output]), special, err_msg=output)
        assert_array_equal(got[output][special], reference[special], err_msg=output)
