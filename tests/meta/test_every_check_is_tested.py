"""Every check has a file here that feeds it something it must accept and something it must reject."""

from pathlib import Path

import pytest

from verify.checks import CHECKS

HERE = Path(__file__).parent


@pytest.mark.parametrize("name", CHECKS)
def test_a_file_of_tests_names_the_check(name: str) -> None:
    texts = [path.read_text() for path in HERE.glob("test_checks_*.py")]
    assert any(f'"{name}"' in text for text in texts)


@pytest.mark.parametrize("name", CHECKS)
def test_a_check_says_what_it_costs_and_what_it_can_find(name: str) -> None:
    check = CHECKS[name]
    assert check.calls >= 0
    assert check.raises
    assert check.summary
