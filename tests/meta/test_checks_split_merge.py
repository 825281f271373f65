"""Split-merge: an lse that does not belong to its out is found by the merge; honest kernels and blind parts pass."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.meta.running import HONEST, Faulty, Outputs, case_of, finding_of, run_of
from tests.verify.candidates.asking import FEATURES
from verify.candidate import Call
from verify.checks.key_parts import key_parts
from verify.checks.split_merge import Part, merge
from verify.verdict import Status

NAME = "split_merge"
UNSPLIT = ("ragged", "lengths", "paged", "alibi", "no_keys", "no_rows")


@pytest.mark.parametrize("feature", [name for name in FEATURES if name not in UNSPLIT])
def test_the_emulation_passes_every_feature(feature: str) -> None:
    finding = finding_of(NAME, "numpy_tiled", case_of(**FEATURES[feature]))
    assert finding.status is Status.PASS, finding.reasons


@pytest.mark.parametrize("candidate", [*HONEST, "torch_flash"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_honest_kernels_pass_where_a_part_is_all_hidden(candidate: str, dtype: str) -> None:
    finding = finding_of(NAME, candidate, case_of(dtype=dtype, causal=True))
    assert finding.status is Status.PASS, finding.reasons


@pytest.mark.parametrize("feature", UNSPLIT)
def test_what_cannot_be_split_is_not_judged(feature: str) -> None:
    assert finding_of(NAME, "numpy_tiled", case_of(**FEATURES[feature])).status is Status.UNSUPPORTED


def test_some_parts_have_rows_that_see_nothing() -> None:
    parts = [part for _, runs in key_parts(run_of("numpy_tiled", case_of(causal=True))) for part in runs.values()]
    assert any(part.facts.has_blind_row() for part in parts)


def rejected(fault: Callable[[Callable[[Call], Outputs], Call], Outputs], **fields: Any) -> str:
    finding = finding_of(NAME, Faulty(fault), case_of(**fields))
    assert finding.status.is_failure
    return finding.reasons[0]


def test_an_lse_that_is_wrong_in_short_calls_alone_is_rejected() -> None:
    def fault(honestly: Callable[[Call], Outputs], call: Call) -> Outputs:
        outputs = honestly(call)
        return outputs | {"lse": outputs["lse"] + np.float32(0.01 if call.problem.seqlen_k < 20 else 0)}

    assert "first keys: lse" in rejected(fault)


def test_a_whole_that_is_not_its_parts_is_rejected() -> None:
    def fault(honestly: Callable[[Call], Outputs], call: Call) -> Outputs:
        outputs = honestly(call)
        return outputs | {"out": outputs["out"] * np.float32(1.001 if call.problem.seqlen_k == 26 else 1)}

    assert "merged out differs from the whole" in rejected(fault)


def test_the_merge_is_exact_and_its_bound_holds_for_every_corner_of_its_parts() -> None:
    random = np.random.default_rng(3)
    shape = (1, 6, 2, 3)
    parts = [
        Part(
            out=random.standard_normal(shape),
            lse=3 * random.standard_normal((1, 2, 6)),
            out_bound=np.full(shape, 0.01),
            lse_bound=np.full((1, 2, 6), 0.05),
        )
        for _ in range(2)
    ]
    merged = merge(*parts)
    weights = [np.exp(part.lse - merged.lse).swapaxes(1, 2)[..., None] for part in parts]
    np.testing.assert_allclose(merged.out, weights[0] * parts[0].out + weights[1] * parts[1].out, rtol=1e-14)
    reached = 0.0
    for signs in np.ndindex(2, 2, 2, 2):
        s = 2 * np.array(signs) - 1
        moved = merge(
            *(
                Part(
                    out=part.out + s[2 * i] * part.out_bound,
                    lse=part.lse + s[2 * i + 1] * part.lse_bound,
                    out_bound=part.out_bound,
                    lse_bound=part.lse_bound,
                )
                for i, part in enumerate(parts)
            )
        )
        assert (np.abs(moved.out - merged.out) <= merged.out_bound).all()
        assert (np.abs(moved.lse - merged.lse) <= merged.lse_bound).all()
        reached = max(reached, float((np.abs(moved.out - merged.out) / merged.out_bound).max()))
    assert reached > 0.5
