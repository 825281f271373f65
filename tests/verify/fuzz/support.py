"""Campaigns small enough for tests: in this process, seeded, with a database of their own."""

from pathlib import Path
from typing import Any

from verify.case import Case
from verify.fuzz import Budget, CampaignState, CaseJudge, Judged, Plan, run_campaign
from verify.problem import AttentionProblem


def campaign(folder: Path, candidate: str, **options: Any) -> CampaignState:
    """State of a finished campaign."""
    defaults: dict[str, Any] = {"seconds": 20.0, "examples": 120, "in_process": True, "max_seqlen": 40}
    defaults["database"] = str(folder / "database")
    plan = Plan(candidate=candidate, out=folder, **(defaults | options))
    return run_campaign(plan)[0]


def judged(case_id: str, candidate: str, checks: tuple[str, ...] = ("forward", "lse", "backward")) -> Judged:
    """One case, judged in this process."""
    return judge(checks).judge(Case.parse(case_id), candidate)


def judge(checks: tuple[str, ...] = ("forward", "lse", "backward")) -> CaseJudge:
    """A judge without a worker process."""
    return CaseJudge(checks=checks, in_process=True)


def scores_of(problem: AttentionProblem) -> int:
    """Scores of one head."""
    return problem.seqlen_q * problem.seqlen_k


BUDGET = Budget(calls=400, seconds=20.0)
