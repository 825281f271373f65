"""Every impostor is rejected by the quick profile; the honest kernel that it wraps passes the same case."""

import pytest

from verify.checks.case_run import CaseFacts
from verify.detection.impostors import impostor_names
from verify.grid import profile_cases
from verify.inputs import make_inputs
from verify.runner import Judge, RunOptions
from verify.verdict import Status

CASES = profile_cases("quick", seed=0)


@pytest.mark.parametrize("name", impostor_names())
def test_impostor_is_rejected_by_the_quick_profile(name: str) -> None:
    judge = Judge(RunOptions(candidates=("numpy_tiled", f"impostor:{name}"), in_process=True))
    for case in CASES:
        honest, wrong = judge.judge(case)
        assert not honest.verdict.status.is_failure, honest.case_id
        if wrong.verdict.status.is_failure:
            return
    pytest.fail(f"{name} survives all {len(CASES)} cases")


def test_no_case_of_the_quick_profile_is_judged_without_a_candidate() -> None:
    judge = Judge(RunOptions(candidates=("numpy_tiled",), in_process=True))
    run = judge.case_run(CaseFacts(case=CASES[0], inputs=make_inputs(CASES[0])), "numpy_tiled")
    assert run.first_outcome().status is Status.PASS
