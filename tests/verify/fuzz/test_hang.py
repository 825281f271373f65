"""A kernel that never returns is found and made small within a bounded time, although each try costs a process."""

from pathlib import Path

import pytest

from verify.case import Case
from verify.fuzz import Budget, CampaignState, CaseJudge, Plan, fault_keys, minimise, run_campaign
from verify.verdict import Status

KERNEL = '''
import numpy as np


def attention(q, k, v, softmax_scale):
    """NumPy attention that loops for ever beyond 64 keys."""
    while k.shape[1] > 64:
        pass
    scores = softmax_scale * np.einsum("bihd,bjhd->bhij", q, k, dtype=np.float64)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.einsum("bhij,bjhd->bihd", weights, v).astype(q.dtype)
'''
FOUND = "attn1:b=2,sq=17,sk=150,h=4,d=24,dtype=fp32,recipe=logits:max=100.0,seed=5"
TIMEOUT_S, START_S = 1.0, 20.0
"""Limit of a call, and more than a worker needs to start on a loaded machine."""


@pytest.fixture
def hanging(tmp_path: Path) -> str:
    """Name of the candidate."""
    path = tmp_path / "hangs.py"
    path.write_text(KERNEL)
    return f"{path}::attention"


def test_a_hang_ends_in_one_row_and_one_head_within_its_budget(hanging: str) -> None:
    judge, budget = CaseJudge(checks=("forward",), timeout_s=TIMEOUT_S), Budget(calls=40, seconds=15.0)
    try:
        first = judge.judge(Case.parse(FOUND), hanging)
        small = minimise(first, fault_keys(first.findings)[0], judge, budget=budget)
    finally:
        judge.close()
    problem = small.case.problem
    assert small.key.status is Status.HANG
    assert small.seconds <= budget.seconds + TIMEOUT_S + START_S
    assert (problem.batch, problem.seqlen_q, problem.nheads, problem.head_dim) == (1, 1, 1, 1)
    assert 64 < problem.seqlen_k <= 100


def test_a_campaign_survives_a_hang_and_reports_it(hanging: str, tmp_path: Path) -> None:
    plan = Plan(
        candidate=hanging,
        out=tmp_path / "out",
        database=str(tmp_path / "database"),
        seconds=60.0,
        timeout_s=TIMEOUT_S,
        minimise_budget=Budget(calls=6, seconds=20.0),
    )
    state: CampaignState = run_campaign(plan)[0]
    (fault,) = state.faults.values()
    assert fault.key.status is Status.HANG
    assert fault.reduced is not None
    assert Case.parse(fault.case_id).problem.batch == 1
