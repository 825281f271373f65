"""Errors that a user of the harness can provoke; each is one line that names argument, value and expectation."""

from __future__ import annotations


class UsageError(ValueError):
    """Bad input from the user: reported as one line, exit code 2, no traceback."""


def require(condition: bool, argument: str, value: object, expectation: str) -> None:
    """Raise UsageError unless `condition`; the message names the argument, its value and what was expected."""
    if not condition:
        raise UsageError(f"{argument}={value!r}: expected {expectation}")
