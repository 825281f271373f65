"""Hypothesis profiles and the plugin, nothing else."""

from hypothesis import HealthCheck, settings

pytest_plugins = ["verify.plugin"]

settings.register_profile("dev", max_examples=30, deadline=None)
settings.register_profile(
    "ci",
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("nightly", max_examples=2000, deadline=None, print_blob=True)
settings.load_profile("dev")
