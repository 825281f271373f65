"""Each symptom leads to its cause, and evidence from passed cases clears features of suspicion."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from tests.verify.candidates.asking import problem_of
from verify.explain import CAUSES, MAX_CAUSES, SUSPECTS, SYMPTOMS, likely_causes, likely_keys
from verify.verdict import Comparison, Finding, Status

PLAIN = problem_of(seqlen_k=32)
SCALE = PLAIN.softmax_scale

RIGHT = Comparison(
    tensor="out", shape_ok=True, dtype_ok=True, n_total=100, n_exceeding=0, nan_mismatch=0, posinf_mismatch=0,
    neginf_mismatch=0, nan_count=0, inf_count=0, max_abs=0.0, max_rel=0.0, rms=0.0, rel_l2=0.0, gain=1.0, bias=0.0,
    cosine=1.0, max_ulp=0.0, max_bound_ratio=0.1, saturated=0.0, fixed_limits_ok=True,
)  # fmt: skip
WRONG = replace(RIGHT, n_exceeding=50, max_bound_ratio=1e4, rel_l2=0.5, pattern="50 of 100 elements")
TENSORS = ("out", "lse", "dq", "dk", "dv", "dbias", "dsink")


def finding(*wrong: str, pattern: str = "", **changes: Any) -> tuple[Finding, ...]:
    """Findings of a case whose named outputs are wrong."""
    bad = replace(WRONG, **changes)
    if pattern:
        bad = replace(bad, pattern=pattern)
    comparisons = tuple(replace(bad if name in wrong else RIGHT, tensor=name) for name in TENSORS)
    return (Finding(check="all", status=Status.NUMERICAL, comparisons=comparisons),)


def factor(value: float) -> str:
    return f"50 of 100 elements, got = {value:.6g} x expected"


@pytest.mark.parametrize(
    ("wrong", "pattern", "cause"),
    [
        (("lse",), factor(math.log2(math.e)), "lse"),
        (("dsink",), "", "sink_gradient"),
        (("dbias",), "", "bias_gradient"),
        (("dq",), factor(1 / SCALE), "grad_scale"),
        (("dk",), factor(SCALE), "grad_scale"),
        (("dk",), factor(math.log(2)), "grad_factor"),
        (("dq", "dk"), "", "delta"),
        (("dv",), "", "dv_only"),
        (("dk",), "", "dk_only"),
        (("dq",), "", "dq_only"),
        (("out",), "all zeros", "unwritten"),
        (("out",), "", "rescale"),
    ],
)
def test_a_pattern_leads_to_its_cause_first(wrong: tuple[str, ...], pattern: str, cause: str) -> None:
    assert likely_keys(PLAIN, finding(*wrong, pattern=pattern))[0] == cause


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ({"nheads": 4, "nheads_kv": 2}, "head"),
        ({"softcap": 3.0}, "score"),
        ({"dropout_p": 0.5}, "dropout"),
        ({"layout": "sliced"}, "layout"),
        ({"causal": True}, "mask"),
        ({"seqlens_k": (3, 5)}, "varlen"),
        ({"head_dim_v": 16}, "head_dim"),
    ],
)
def test_the_only_feature_of_a_case_is_suspected_first_until_it_has_passed(fields: dict[str, Any], cause: str) -> None:
    problem = problem_of(**{"seqlen_k": 32, **fields})
    findings = finding("out", "lse")
    assert likely_keys(problem, findings)[0] == cause
    cleared = likely_keys(problem, findings, passed=frozenset(SUSPECTS[cause]))
    assert cause not in cleared or cause in ("mask", "varlen")  # of which there are many combinations


@pytest.mark.parametrize(
    ("status", "cause"),
    [
        (Status.MUTATED_INPUT, "inputs"),
        (Status.RACE, "race"),
        (Status.OUT_OF_BOUNDS, "memory"),
        (Status.NONDETERMINISTIC, "state"),
    ],
)
def test_an_instrument_that_reports_a_fault_is_believed(status: Status, cause: str) -> None:
    assert likely_keys(PLAIN, (Finding(check="any", status=status),))[0] == cause


@pytest.mark.parametrize(
    ("check", "status", "cause"),
    [
        ("streams", Status.RACE, "stream"),
        ("deferred", Status.RACE, "stream"),
        ("prefill", Status.UNWRITTEN, "unwritten"),
        ("split_count", Status.NUMERICAL, "split"),
        ("split_merge", Status.NUMERICAL, "split"),
    ],
)
def test_a_check_of_one_kind_of_fault_names_it(check: str, status: Status, cause: str) -> None:
    assert likely_keys(PLAIN, (Finding(check=check, status=status),))[0] == cause


def test_a_slight_error_everywhere_is_lost_precision() -> None:
    assert likely_keys(PLAIN, finding("out", rel_l2=1e-3, max_bound_ratio=20.0))[0] == "precision"


def test_nothing_failed_means_no_cause_and_never_more_than_three_are_named() -> None:
    assert likely_causes(PLAIN, finding()[:0]) == ()
    assert likely_keys(PLAIN, (Finding(check="all", status=Status.PASS),)) == ()
    assert len(likely_keys(problem_of(causal=True, softcap=1.0, sink=True), finding(*TENSORS))) <= MAX_CAUSES


def test_every_symptom_names_a_known_cause_and_sentences_are_the_keys_sentences() -> None:
    assert {cause for cause, _ in SYMPTOMS} <= set(CAUSES)
    assert likely_causes(PLAIN, finding("dv")) == tuple(CAUSES[key] for key in likely_keys(PLAIN, finding("dv")))
