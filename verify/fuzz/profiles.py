"""Settings profiles of Hypothesis for tests that draw cases: quick for work, ci repeats itself, deep overnight."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

_SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large)
PROFILES = ("attn-quick", "attn-ci", "attn-deep")


def register_profiles() -> None:
    """Make the profiles known: `settings.load_profile("attn-deep")`, or `pytest --hypothesis-profile attn-deep`.

    Hypothesis loads a profile `ci` by itself where CI is set, which draws the same examples every time: a nightly job
    must load `attn-deep` by name to see new ones.
    """
    settings.register_profile("attn-quick", max_examples=25, deadline=None, suppress_health_check=_SLOW)
    settings.register_profile(
        "attn-ci",
        max_examples=100,
        deadline=None,
        derandomize=True,
        database=None,
        print_blob=True,
        suppress_health_check=_SLOW,
    )
    settings.register_profile(
        "attn-deep", max_examples=5000, deadline=None, derandomize=False, print_blob=True, suppress_health_check=_SLOW
    )
