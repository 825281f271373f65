"""Split counts: a merge that is wrong for one number of splits is found; honest splits pass."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from tests.meta.running import Faulty, Outputs, case_of, finding_of
from tests.verify.candidates.asking import FEATURES
from verify import register
from verify.candidate import Call, RefusedError
from verify.candidates import load
from verify.candidates.user.function import FunctionCandidate
from verify.inputs import make_inputs
from verify.registration import declaration_of
from verify.verdict import Status

NAME = "split_count"
HONEST = "numpy_tiled:split"
SEVERAL_TILES = {"seqlen_k": 100}


@pytest.mark.parametrize("feature", [name for name in FEATURES if name not in ("no_keys", "no_rows")])
def test_honest_splits_pass_every_feature(feature: str) -> None:
    finding = finding_of(NAME, HONEST, case_of(**FEATURES[feature]))
    assert finding.status is Status.PASS, finding.reasons


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_honest_splits_pass_over_several_tiles(dtype: str) -> None:
    finding = finding_of(NAME, HONEST, case_of(dtype=dtype, causal=True, **SEVERAL_TILES))
    assert finding.status is Status.PASS, finding.reasons


def test_splits_change_the_order_of_the_sums() -> None:
    candidate, case = load(HONEST), case_of(**SEVERAL_TILES)
    call = Call(problem=case.problem, arrays=make_inputs(case).arrays, backward=False)
    outs = [candidate.run(replace(call, splits=count)).outputs["out"] for count in (1, 3)]
    assert (outs[0] != outs[1]).any()
    with pytest.raises(RefusedError, match="5 splits not declared"):
        candidate.run(replace(call, splits=5))


def unscaled_merge(honestly: Callable[[Call], Outputs], call: Call) -> Outputs:
    """The parts of three splits are averaged."""
    outputs = honestly(call)
    return outputs | {"out": outputs["out"] * np.float32(0.99 if call.splits == 3 else 1)}


def test_a_wrong_merge_of_one_count_is_rejected() -> None:
    finding = finding_of(NAME, Faulty(unscaled_merge, HONEST), case_of(**SEVERAL_TILES))
    assert finding.status is Status.NUMERICAL
    assert finding.reasons[0].startswith("3 splits: out")


def test_a_promise_of_equal_bits_is_held_to() -> None:
    candidate = Faulty(lambda honestly, call: honestly(call), HONEST)
    able = replace(candidate.contract.capabilities, splits_bitwise=True)
    candidate.contract = replace(candidate.contract, capabilities=able)
    finding = finding_of(NAME, candidate, case_of(**SEVERAL_TILES))
    assert finding.status is Status.NUMERICAL
    assert finding.reasons[0] == "out: other bits with 2 splits than with 1"


def test_a_candidate_without_declared_counts_is_not_judged() -> None:
    assert finding_of(NAME, "numpy_tiled", case_of()).status is Status.UNSUPPORTED


@pytest.mark.parametrize(("wrong_for", "right"), [(0, Status.PASS), (4, Status.NUMERICAL)])
def test_a_users_function_is_told_the_number_of_splits(wrong_for: int, right: Status) -> None:
    @register(arrays="numpy", arithmetic="eager", split_counts=(1, 2, 4))
    def attention(q: Any, k: Any, v: Any, softmax_scale: float, num_splits: int = 1) -> Any:
        scores = np.einsum("bqhd,bkhd->bhqk", q, k) * np.float32(softmax_scale)
        top = scores.max(axis=-1, keepdims=True)
        parts = [slice(*ends) for ends in pairwise(np.linspace(0, k.shape[1], num_splits + 1).astype(int))]
        weights = np.exp(scores - top)
        total = sum(weights[..., part].sum(axis=-1) for part in parts)
        out = sum(np.einsum("bhqk,bkhd->bqhd", weights[..., part], v[:, part]) for part in parts)
        return out / (total * np.float32(1.01 if num_splits == wrong_for else 1)).swapaxes(1, 2)[..., None]

    finding = finding_of(NAME, FunctionCandidate(declaration_of(attention)), case_of())
    assert finding.status is right, finding.reasons
    assert all(reason.startswith("4 splits") for reason in finding.reasons)
