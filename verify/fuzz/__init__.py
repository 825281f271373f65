"""Fuzzing: campaigns that draw cases, the smallest case of each fault, and what is kept of it.

For tests of one's own: `check_case`, the strategies of verify.strategies and `register_profiles`.
"""

from verify.fuzz.campaign import LaneFailedError, run_campaign
from verify.fuzz.faults import FaultKey, fault_keys
from verify.fuzz.judging import CaseJudge, Judged, check_case
from verify.fuzz.minimise import Budget, Minimised, minimise
from verify.fuzz.plan import Plan
from verify.fuzz.profiles import register_profiles
from verify.fuzz.regressions import Regression, load_regressions, save_regression
from verify.fuzz.state import CampaignState, Fault

__all__ = [
    "Budget",
    "CampaignState",
    "CaseJudge",
    "Fault",
    "FaultKey",
    "Judged",
    "LaneFailedError",
    "Minimised",
    "Plan",
    "Regression",
    "check_case",
    "fault_keys",
    "load_regressions",
    "minimise",
    "register_profiles",
    "run_campaign",
    "save_regression",
]
