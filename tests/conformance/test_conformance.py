"""The conformance suite on every candidate: `pytest tests/conformance -k backward --candidate NAME`."""

from verify.verdict import Finding, Status


def test_candidate_conforms(attention_finding: Finding) -> None:
    assert attention_finding.status in (Status.PASS, Status.POWERLESS), attention_finding.reasons
