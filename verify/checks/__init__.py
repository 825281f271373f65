"""The checks by name, and which of them a profile runs."""

from __future__ import annotations

from verify.checks.aggregate import AGGREGATE
from verify.checks.base import Check
from verify.checks.comparison import BACKWARD, FORWARD, LSE
from verify.checks.contract import CONTRACT
from verify.checks.determinism import DETERMINISM
from verify.errors import require

CHECKS = {check.name: check for check in (CONTRACT, FORWARD, LSE, BACKWARD, AGGREGATE, DETERMINISM)}


def select_checks(names: tuple[str, ...]) -> tuple[Check, ...]:
    """Checks of those names, in registry order; all of them when no name is given."""
    for name in names:
        require(name in CHECKS, "checks", name, "one of " + ", ".join(CHECKS))
    return tuple(check for name, check in CHECKS.items() if not names or name in names)


__all__ = ["CHECKS", "Check", "select_checks"]
