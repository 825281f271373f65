"""Ball arithmetic proves how far the fp64 reference is from the exact result."""

from __future__ import annotations

import builtins
import importlib
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from references.attention import attention
from references.attention_backward import attention_backward
from references.options import AttentionOptions
from tests.references.problems import Problem, plain_problem, problems, relative_distance

pytest.importorskip("flint", reason="python-flint is the optional extra 'certify'")
certified = importlib.import_module("references.certified")

# fp64 of at most 9 keys and 5 features: some tens of roundings of 2^-53 on numbers of the result's size.
PROVEN = 2e-14
GRADIENTS = ("dq", "dk", "dv", "dbias", "dsink")


def proven_error(proven: Any, got: Any) -> float:
    """Largest proven |got - exact| over the largest |exact| (at least 1)."""
    finite = np.isfinite(proven.mid)
    return float(proven.error_of(got).max(initial=0.0)) / max(1.0, float(np.abs(proven.mid[finite]).max(initial=0.0)))


def prove(problem: Problem) -> Any:
    return certified.certified_attention(*problem.operands, problem.dout, **problem.asked, dlse=problem.dlse)


@settings(deadline=None)
@given(problems(max_seqlen=5))
def test_forward_is_proven_close_to_exact(problem: Problem) -> None:
    proven = certified.certified_attention(*problem.operands, **problem.asked)
    got = attention(*problem.operands, **problem.asked)
    assert proven_error(proven.out, got.out) < PROVEN
    assert proven_error(proven.lse, got.lse) < PROVEN


@settings(deadline=None)
@given(problems(max_seqlen=5))
def test_backward_is_proven_close_to_exact(problem: Problem) -> None:
    proven = prove(problem)
    got = attention_backward(*problem.operands, problem.dout, **problem.asked, dlse=problem.dlse)
    for name in GRADIENTS:
        assert (getattr(proven, name) is None) == (getattr(got, name) is None), name
        if getattr(got, name) is not None:
            assert proven_error(getattr(proven, name), getattr(got, name)) < PROVEN, name


def test_midpoints_are_the_nearest_doubles_of_much_finer_balls_backward_too() -> None:
    proven = prove(plain_problem())
    for name in ("out", "lse", "dq", "dk", "dv"):
        array = getattr(proven, name)
        assert (array.radius <= np.spacing(np.abs(array.mid))).all(), name


def test_balls_at_two_precisions_overlap_backward_too() -> None:
    problem = plain_problem(options=AttentionOptions(softmax_scale=0.75, softcap=3.0))
    given_ = (*problem.operands, problem.dout)
    fine, coarse = (certified.certified_attention(*given_, **problem.asked, precision_bits=bits) for bits in (300, 80))
    for name in ("out", "lse", "dq", "dk", "dv"):
        pairs = zip(getattr(fine, name).balls.flat, getattr(coarse, name).balls.flat, strict=True)
        assert all(a.overlaps(b) for a, b in pairs), name


def test_a_result_wrong_in_the_thirteenth_digit_is_exposed() -> None:
    problem = plain_problem()
    got = attention(*problem.operands, **problem.asked).out * (1 + 1e-13)
    proven = certified.certified_attention(*problem.operands, **problem.asked).out
    assert proven_error(proven, got) > PROVEN
    assert relative_distance(got, proven.mid) < 1e-12


def test_an_infinite_answer_has_error_zero_only_if_given() -> None:
    problem = plain_problem(seqlen_k=0)
    proven = certified.certified_attention(*problem.operands, **problem.asked).lse
    assert (proven.error_of(np.full(proven.mid.shape, -np.inf)) == 0).all()
    assert np.isinf(proven.error_of(np.zeros(proven.mid.shape))).all()


def test_a_bound_is_rounded_up_to_a_double() -> None:
    flint = certified.flint
    balls = np.array([flint.arb(n) / 97 for n in range(1, 97)], dtype=object)
    bounds = certified.CertifiedArray(balls).error_of(np.zeros(96))
    assert all(flint.arb(float(bound)) > ball for bound, ball in zip(bounds, balls, strict=True))


@pytest.fixture
def without_flint(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    real = builtins.__import__

    def refuse(name: str, *rest: Any, **named: Any) -> Any:
        if name == "flint":
            raise ImportError("No module named 'flint'")
        return real(name, *rest, **named)

    monkeypatch.delitem(sys.modules, "references.certified")
    monkeypatch.setattr(builtins, "__import__", refuse)
    yield
    monkeypatch.undo()


@pytest.mark.usefixtures("without_flint")
def test_a_missing_flint_is_reported_with_the_extra_that_installs_it() -> None:
    with pytest.raises(ImportError, match=r"certified needs python-flint: pip install 'attn-verify\[certify\]'"):
        importlib.import_module("references.certified")
