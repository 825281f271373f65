"""What a candidate declares decides which problems it is asked."""

from typing import Any

import pytest

from verify.case import Case
from verify.contract import Arithmetic, Capabilities
from verify.errors import UsageError

PLAIN = "attn1:b=1,sq=2,sk=2,h=1,d=8,dtype=fp32"


def test_problem_without_a_required_feature_is_refused() -> None:
    able = Capabilities(features=frozenset({"causal", "gqa"}), required=frozenset({"causal"}))
    assert able.refusal(Case.parse(PLAIN).problem) == "causal required"
    assert able.refusal(Case.parse(PLAIN + ",causal=1").problem) is None


def test_required_feature_must_be_declared() -> None:
    with pytest.raises(UsageError, match="required"):
        Capabilities(features=frozenset(), required=frozenset({"causal"}))


@pytest.mark.parametrize("lengths", ["sq=3,sk=2", "sq=2,sk=4,lenk=1"])
def test_more_rows_than_keys_can_be_left_undeclared(lengths: str) -> None:
    able = Capabilities(features=frozenset({"lengths"}), more_rows_than_keys=False)
    problem = Case.parse(f"attn1:b=1,{lengths},h=1,d=8,dtype=fp32").problem
    assert able.refusal(problem) == "more query rows than keys not declared"
    assert Capabilities(features=frozenset({"lengths"})).refusal(problem) is None


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("dscores_products_dtype", {"dscores_products_dtype": "bf16"}),
        ("dq_unscaled_dtype", {"dq_unscaled_dtype": "bf16", "scale_on_dscores": True}),
        ("scaled_q_in_dk", {"scaled_q_in_dk": True}),
        ("scaled_q_in_dk", {"scaled_q_in_dk": True, "scale_on": "q", "scale_on_dscores": True}),
    ],
)
def test_roundings_of_what_another_field_excludes_are_refused(field: str, fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"^{field}="):
        Arithmetic(**fields)
