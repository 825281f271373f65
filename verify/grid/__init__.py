"""The explicit, deterministic grid of cases: quick, full and nightly. Draws specs, never arrays."""

from verify.grid.coverage import Coverage, feature_coverage
from verify.grid.profiles import PROFILES, profile_cases

__all__ = ["PROFILES", "Coverage", "feature_coverage", "profile_cases"]
