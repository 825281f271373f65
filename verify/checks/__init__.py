"""The checks by name, and which of them run when none is asked for."""

from __future__ import annotations

from verify.checks.aggregate import AGGREGATE
from verify.checks.base import Check
from verify.checks.comparison import BACKWARD, FORWARD, LSE
from verify.checks.contract import CONTRACT
from verify.checks.determinism import DETERMINISM
from verify.checks.equivalence import EQUIVALENCE
from verify.checks.invariance import INVARIANCE
from verify.checks.metamorphic import METAMORPHIC
from verify.checks.poison import POISON
from verify.checks.power import POWER
from verify.checks.prefill import PREFILL
from verify.checks.probes import PROBES
from verify.checks.replay import DECLARED_ARITHMETIC, DECLARED_BACKWARD
from verify.checks.sensitivity import SENSITIVITY
from verify.checks.sequence import SEQUENCE
from verify.checks.special_values import SPECIAL_VALUES
from verify.checks.split_count import SPLIT_COUNT
from verify.checks.split_merge import SPLIT_MERGE
from verify.checks.streams import DEFERRED, STREAMS
from verify.errors import require

DEFAULT = (CONTRACT, FORWARD, LSE, BACKWARD, AGGREGATE, DETERMINISM, POWER, POISON, SPECIAL_VALUES)
"""Cheap enough for every case: at most six more calls and no bounds beside those of the case itself."""
SEVERAL_CALLS = (
    PREFILL,
    PROBES,
    INVARIANCE,
    METAMORPHIC,
    EQUIVALENCE,
    SPLIT_MERGE,
    SPLIT_COUNT,
    SENSITIVITY,
    SEQUENCE,
    DECLARED_ARITHMETIC,
    DECLARED_BACKWARD,
)
"""Several calls with changed inputs, most of them with bounds of their own: asked for by name, or as `all`."""
ORDER = (STREAMS, DEFERRED)
"""They wait for late work, so they cost time on the clock: asked for by name, or as `all`."""
CHECKS = {check.name: check for check in (*DEFAULT, *SEVERAL_CALLS, *ORDER)}
ALL = "all"


def select_checks(names: tuple[str, ...]) -> tuple[Check, ...]:
    """Checks of those names, in registry order; `all` stands for every check, no name for those of DEFAULT."""
    for name in names:
        require(name in CHECKS or name == ALL, "checks", name, "one of " + ", ".join((*CHECKS, ALL)))
    if not names:
        return DEFAULT
    return tuple(check for name, check in CHECKS.items() if ALL in names or name in names)


__all__ = ["ALL", "CHECKS", "DEFAULT", "ORDER", "SEVERAL_CALLS", "Check", "select_checks"]
