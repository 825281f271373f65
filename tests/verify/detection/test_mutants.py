"""The catalogue fits the sources: every anchor occurs exactly once, every fact is a known one."""

import pytest

from verify.detection.mutant import KINDS, Mutant, Patch
from verify.detection.mutants import catalogue, mutant_named
from verify.errors import UsageError
from verify.explain import CAUSES

MUTANTS = tuple(catalogue().values())


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_anchor_occurs_exactly_once_and_the_patch_changes_the_file(mutant: Mutant) -> None:
    for patch in mutant.patches:
        assert patch.anchor != patch.replacement
    assert bool(mutant.files()) == bool(mutant.patches)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_names_a_report_and_a_cause(mutant: Mutant) -> None:
    assert mutant.url.startswith("https://github.com/") or mutant.report == "classic"
    assert mutant.cause in CAUSES


def test_at_least_120_mutants_count_and_every_kind_has_one() -> None:
    counted = [mutant for mutant in MUTANTS if mutant.counted]
    assert len(counted) >= 120
    assert {mutant.kind for mutant in counted} == set(KINDS)
    assert {mutant.direction for mutant in counted} == {"forward", "backward", "both"}


def test_a_mutant_is_not_both_equivalent_and_below_rounding() -> None:
    assert not [mutant.name for mutant in MUTANTS if mutant.equivalent and mutant.below_rounding]
    assert all(len(mutant.equivalent) > 60 for mutant in MUTANTS if mutant.equivalent)


@pytest.mark.parametrize(("text", "found"), [("b", 0), ("a a", 2)])
def test_an_anchor_that_does_not_occur_exactly_once_is_refused(text: str, found: int) -> None:
    with pytest.raises(UsageError, match=f"exactly once, found {found}"):
        Patch(file="tiled.cu", anchor="a", replacement="c").apply(text)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(UsageError, match="mutant='nobody'"):
        mutant_named("nobody")


@pytest.mark.parametrize(("field", "value"), [("kind", "typo"), ("direction", "sideways"), ("kernel", "none")])
def test_an_unknown_fact_is_refused(field: str, value: str) -> None:
    facts = {
        "name": "m",
        "kernel": "cuda_tiled",
        "kind": "lse",
        "direction": "both",
        "cause": "lse",
        "report": "classic",
    }
    with pytest.raises(UsageError, match=f"{field}='{value}'"):
        Mutant(**{**facts, field: value}, patches=(Patch(file="tiled.cu", anchor="a", replacement="b"),))  # type: ignore[arg-type]


def test_a_mutant_without_a_change_is_refused() -> None:
    with pytest.raises(UsageError, match="at least one change"):
        Mutant(name="m", kernel="cuda_tiled", kind="lse", direction="both", cause="lse", report="classic")
