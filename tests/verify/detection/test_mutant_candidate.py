"""A mutant runs the patched sources behind the honest adapter; the honest kernel with the same tile passes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.verify.candidates.asking import arrays_of, ask, problem_of
from verify.candidates import load
from verify.detection.mutant_candidate import SMALL_TILE, SmallKernel, build, write_sources
from verify.detection.mutants import mutant_named
from verify.errors import UsageError

PROBLEM = problem_of(seqlen_k=40)


@pytest.fixture(scope="module")
def honest() -> dict[str, np.ndarray]:
    return dict(ask(SmallKernel("cuda_tiled"), PROBLEM, arrays_of(PROBLEM)).outputs)


def test_a_source_mutant_differs_where_its_fault_is_and_nowhere_else(honest: dict[str, np.ndarray]) -> None:
    got = ask(load("mutant:dk_without_scale"), PROBLEM, arrays_of(PROBLEM)).outputs
    assert {name for name in got if got[name].tobytes() != honest[name].tobytes()} == {"dk"}


def test_a_launch_mutant_has_a_state_of_its_own_in_each_instance(honest: dict[str, np.ndarray]) -> None:
    for _ in range(2):
        mutant, arrays = load("mutant:value_depends_on_placement"), arrays_of(PROBLEM)
        first, second = (ask(mutant, PROBLEM, arrays).outputs["out"].tobytes() for _ in range(2))
        assert first == honest["out"].tobytes() != second


def test_patched_files_lie_in_a_folder_named_by_their_content() -> None:
    mutant = mutant_named("causal_top_left")
    source = build("causal_top_left").contract and write_sources(mutant, SmallKernel("cuda_tiled")._kernel.source)
    assert isinstance(source, Path)
    assert "s.diagonal = 0;" in (source.parent / "pairs.cuh").read_text()
    assert write_sources(mutant, SmallKernel("cuda_tiled")._kernel.source) == source


def test_a_mutant_declares_what_the_honest_kernel_with_its_tile_declares() -> None:
    mutant = build("causal_top_left")
    assert mutant.contract == SmallKernel("cuda_tiled").contract
    assert mutant.contract.arithmetic["fp32"].tile_k == SMALL_TILE.k


def test_an_unknown_mutant_is_refused() -> None:
    with pytest.raises(UsageError, match="mutant='nobody'"):
        load("mutant:nobody")
