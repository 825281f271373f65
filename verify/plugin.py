"""pytest plugin: the conformance suite on every candidate, with ids fit for -k (backward, causal, bf16, ragged, ...).

Options and fixtures only, imported by every pytest run of an environment: heavy imports wait until they are needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from verify.conformance import ConformanceJudge, Question
    from verify.verdict import Finding

FIXTURE = "attention_finding"
CASES_TOGETHER = 12


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of the conformance suite."""
    group = parser.getgroup("attn-verify", "attention-kernel verification")
    group.addoption(
        "--candidate", action="append", default=[], dest="attn_candidates", help="candidate to judge; repeatable"
    )
    group.addoption(
        "--attn-profile", default="quick", choices=("quick", "full", "nightly"), help="cases of the conformance suite"
    )
    group.addoption("--attn-seed", default=0, type=int, help="seed of the cases' values")
    group.addoption("--attn-timeout", default=60.0, type=float, help="seconds for one call of a candidate")
    group.addoption("--attn-in-process", action="store_true", help="run candidates in the pytest process")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrise tests that use `attention_finding` over candidates, cases and checks."""
    if FIXTURE not in metafunc.fixturenames:
        return
    from verify.conformance import questions
    from verify.errors import UsageError

    options = metafunc.config.option
    try:
        asked = questions(tuple(options.attn_candidates), options.attn_profile, options.attn_seed)
    except UsageError as error:
        raise pytest.UsageError(str(error)) from error
    marker = next(metafunc.definition.iter_markers("attention_cases"), None)
    shared = metafunc.config.pluginmanager.hasplugin("xdist")
    parameters = [
        pytest.param(question, id=question.label, marks=_together(question) if shared else ())
        for question in asked
        if marker is None or marker.args[0](question.case)
    ]
    metafunc.parametrize(FIXTURE, parameters, indirect=True)


def _together(question: Question) -> pytest.MarkDecorator:
    """Keeps questions that share calls, reference and bounds on one worker (`--dist loadgroup`)."""
    return pytest.mark.xdist_group(f"{question.candidate}-{question.place // CASES_TOGETHER}")


def pytest_configure(config: pytest.Config) -> None:
    """Describe the marker."""
    config.addinivalue_line("markers", "attention_cases(predicate): only cases for which predicate(case) is true")


@pytest.fixture(scope="session")
def attention_judge(request: pytest.FixtureRequest) -> Iterator[ConformanceJudge]:
    """Judges one case at a time and keeps what its checks share."""
    from verify.conformance import ConformanceJudge

    options = request.config.option
    judge = ConformanceJudge(timeout_s=options.attn_timeout, in_process=options.attn_in_process)
    try:
        yield judge
    finally:
        judge.close()


@pytest.fixture
def attention_finding(request: pytest.FixtureRequest, attention_judge: ConformanceJudge) -> Finding:
    """Finding of one check on one case and candidate; UNSUPPORTED skips, a known deviation xfails, others fail."""
    from verify.known import known_reason
    from verify.verdict import Status

    question = request.param
    finding = attention_judge.finding(question)
    if finding.status is Status.UNSUPPORTED:
        pytest.skip("; ".join(finding.reasons))
    if reason := known_reason(question.candidate, question.case.problem, finding):
        pytest.xfail(reason)
    if finding.status.is_failure:
        pytest.fail(attention_judge.explain(question, finding), pytrace=False)
    return finding
