"""Candidates by name."""

from __future__ import annotations

import pytest

from verify.candidate import Candidate
from verify.candidates import builtin_names, load
from verify.candidates.numpy_tiled import VARIANTS
from verify.contract import OUTPUT_NAMES
from verify.errors import UsageError


@pytest.mark.parametrize("name", builtin_names())
def test_every_builtin_loads_under_its_name(name: str) -> None:
    candidate = load(name)
    assert isinstance(candidate, Candidate)
    assert candidate.name == name
    assert candidate.contract.capabilities.dtypes <= set(candidate.contract.arithmetic)
    assert candidate.contract.capabilities.outputs <= set(OUTPUT_NAMES)


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name != "default"])
def test_variants_load_by_name_without_being_listed(variant: str) -> None:
    assert load(f"numpy_tiled:{variant}").name == f"numpy_tiled:{variant}"
    assert f"numpy_tiled:{variant}" not in builtin_names()


@pytest.mark.parametrize("name", ["numpy", "torch_flash:fast", "numpy_tiled:fast", "impostor:honest", ""])
def test_unknown_names_are_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(UsageError, match=r"expected one of \w+"):
        load(name)


def test_impostors_load_but_are_not_listed() -> None:
    assert load("impostor:zeros").name == "impostor:zeros"
    assert not [name for name in builtin_names() if name.startswith("impostor")]
