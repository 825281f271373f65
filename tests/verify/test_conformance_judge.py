"""Cases whose rows see no key are left to the contract, by every judge alike."""

from pathlib import Path

import pytest

from verify.case import Case
from verify.conformance import ConformanceJudge, Question
from verify.fuzz import CaseJudge
from verify.runner import RunOptions, run_cases
from verify.verdict import Status

# A softmax that gives such a row the mean of V, and says so.
MEAN_OF_V = """
import numpy as np
from verify import register

@register(fully_masked_rows=False)
def attention(q, k, v, softmax_scale, causal):
    scores = np.einsum("bihd,bjhd->bhij", q, k) * np.float32(softmax_scale)
    rows, keys = scores.shape[2:]
    if causal:
        scores = np.where(np.arange(keys) <= np.arange(rows)[:, None] + keys - rows, scores, np.float32(-1e30))
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bhij,bjhd->bihd", weights / weights.sum(-1, keepdims=True), v)
"""
SHAPE = "attn1:b=1,h=2,d=8,dtype=fp32,causal=1,seed=1,"


@pytest.mark.parametrize(("lengths", "status"), [("sq=5,sk=3", Status.UNSUPPORTED), ("sq=3,sk=5", Status.PASS)])
def test_undeclared_blind_rows_are_asked_nowhere(lengths: str, status: Status, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MEAN_OF_V)
    name, case = f"{tmp_path / 'mine.py'}::attention", Case.parse(SHAPE + lengths)
    (record,) = run_cases([case], RunOptions(candidates=(name,), checks=("forward",)), on_line=lambda line: None)
    fuzz, suite = CaseJudge(checks=("forward",)), ConformanceJudge(timeout_s=60.0, in_process=False)
    try:
        (fuzzed,) = fuzz.judge(case, name).findings
        finding = suite.finding(Question(candidate=name, case=case, check="forward", place=0))
    finally:
        fuzz.close()
        suite.close()
    assert (record.verdict.status, fuzzed.status, finding.status) == (status,) * 3
