"""The rules of other suites accept what they should, and let through what they are known to let through."""

import numpy as np
import pytest

from verify.detection.rules import RULES, Question, within

RNG = np.random.Generator(np.random.PCG64(7))
EXPECTED = RNG.normal(size=(1, 8, 2, 4))
BY_NAME = {rule.name: rule for rule in RULES}


def question(got: np.ndarray, baseline: np.ndarray | None = None) -> Question:
    base = EXPECTED.astype(np.float32) if baseline is None else baseline
    return Question(got={"out": got}, expected={"out": EXPECTED}, baseline={"out": base}, dtype="fp32")


@pytest.mark.parametrize("name", BY_NAME)
def test_a_rule_accepts_the_rounded_reference(name: str) -> None:
    assert BY_NAME[name].accepts(question(EXPECTED.astype(np.float32)))


@pytest.mark.parametrize("name", BY_NAME)
@pytest.mark.parametrize("wrong", [np.zeros_like(EXPECTED), np.full_like(EXPECTED, np.nan), -EXPECTED])
def test_a_rule_rejects_zeros_nan_and_a_flipped_sign_of_normal_values(name: str, wrong: np.ndarray) -> None:
    assert not BY_NAME[name].accepts(question(wrong.astype(np.float32)))


def test_cosine_accepts_any_positive_factor() -> None:
    assert BY_NAME["cosine > 0.999"].accepts(question((3 * EXPECTED).astype(np.float32)))


def test_twice_a_bad_baseline_accepts_a_bad_answer() -> None:
    bad = (EXPECTED + 0.1).astype(np.float32)
    assert BY_NAME["FlashAttention 2x"].accepts(question(bad, baseline=bad))
    assert not BY_NAME["FlashAttention 2x"].accepts(question(bad))


def test_equal_infinities_are_within_any_limit_and_nan_is_within_none() -> None:
    infinite = np.array([-np.inf, 1.0])
    assert within(infinite, infinite, 0.0, 0.0)
    assert not within(np.array([np.nan]), np.array([np.nan]), 1.0, 1.0)
