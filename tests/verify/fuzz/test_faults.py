"""Faults are told apart by check, status, tensor and class of pattern, and by nothing finer."""

import pytest

from tests.verify.fuzz.support import judged
from verify.case import Case
from verify.fuzz import check_case, fault_keys
from verify.verdict import Finding, Status

CASE_ID = "attn1:b=2,sq=5,sk=7,h=2,d=8,dtype=fp32,recipe=normal,seed=1"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("zeros", "forward NUMERICAL out all zeros"),
        ("all_nan", "forward NONFINITE out all NaN"),
        ("base2_lse", "lse NUMERICAL lse constant factor"),
        ("permuted_rows", "forward NUMERICAL out elements"),
    ],
)
def test_the_first_failing_check_names_the_fault(name: str, expected: str) -> None:
    assert str(fault_keys(judged(CASE_ID, f"impostor:{name}").findings)[0]) == expected


def test_two_cases_of_one_bug_have_one_key() -> None:
    other = "attn1:b=1,sq=9,sk=9,h=1,d=16,dtype=fp16,recipe=normal,seed=7"
    first, second = (fault_keys(judged(text, "impostor:permuted_rows").findings)[0] for text in (CASE_ID, other))
    assert first == second


def test_a_known_deviation_is_another_fault_and_names_a_case_last() -> None:
    wrong = [Finding(check=check, status=Status.NONFINITE, reasons=("out: NaN",)) for check in ("forward", "backward")]
    first, last = fault_keys(wrong, lambda finding: finding.check == "forward")
    assert (first.check, last.check, last.known) == ("backward", "forward", True)
    assert not last.same_kind(fault_keys(wrong[:1])[0])


def test_exceptions_are_told_apart_by_their_class() -> None:
    keys = [
        fault_keys([Finding(check="contract", status=Status.LAUNCH_ERROR, reasons=(reason,))])[0]
        for reason in ("ValueError: 3 of 4", "ValueError: 5 of 6", "KeyError: 'q'")
    ]
    assert keys[0] == keys[1] != keys[2]


def test_check_case_takes_a_case_or_its_id_and_gives_the_verdict() -> None:
    assert check_case(CASE_ID, "numpy_tiled", checks=("forward",)).status is Status.PASS
    assert check_case(Case.parse(CASE_ID), "impostor:zeros", checks=("forward",)).status is Status.NUMERICAL
