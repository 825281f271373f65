"""Power: a case whose bounds accept a wrong answer is named; a generic case rejects all of them."""

import pytest

from tests.meta.running import HONEST, case_of, finding_of
from verify.case import Recipe
from verify.verdict import Status


@pytest.mark.parametrize("candidate", HONEST)
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_a_generic_case_has_power(candidate: str, dtype: str) -> None:
    assert finding_of("power", candidate, case_of(dtype=dtype, causal=True)).status is Status.PASS


@pytest.mark.parametrize(
    ("recipe", "fields", "accepted"),
    [
        ("normal", {"seqlen_q": 0}, "zeros would be accepted"),
        ("normal", {"seqlen_k": 1}, "mean of v would be accepted"),
        ("v_constant", {}, "mean of v would be accepted"),
        ("zero_queries", {}, "scale 1 % too large would be accepted"),
        ("identical_queries", {"nheads": 1, "batch": 1}, "permuted rows would be accepted"),
    ],
)
def test_a_case_that_cannot_fail_is_powerless(recipe: str, fields: dict[str, int], accepted: str) -> None:
    finding = finding_of("power", "numpy_tiled", case_of(Recipe.of(recipe), **fields))
    assert finding.status is Status.POWERLESS
    assert accepted in finding.reasons
