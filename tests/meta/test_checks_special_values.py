"""Special values: a NaN that is swallowed or leaks is found; honest kernels pass under every mask."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.meta.running import HONEST, Faulty, Outputs, case_of, finding_of
from tests.verify.candidates.asking import FEATURES
from verify.candidate import Call
from verify.verdict import Status

NAME = "special_values"


@pytest.mark.parametrize("feature", [name for name in FEATURES if name not in ("dropout", "no_keys", "no_rows")])
def test_the_emulation_passes_every_feature(feature: str) -> None:
    finding = finding_of(NAME, "numpy_tiled", case_of(**FEATURES[feature]))
    assert finding.status is Status.PASS, finding.reasons


@pytest.mark.parametrize("candidate", HONEST)
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_honest_kernels_pass(candidate: str, dtype: str) -> None:
    finding = finding_of(NAME, candidate, case_of(dtype=dtype, causal=True, nheads=4, nheads_kv=2))
    assert finding.status is Status.PASS, finding.reasons


def test_swallowed_nan_is_rejected() -> None:
    finding = finding_of(NAME, "impostor:nan_swallowed", case_of())
    assert finding.status is Status.NONFINITE
    assert "lost in" in finding.reasons[0]


def leaks_into_all_rows(honestly: Callable[[Call], Outputs], call: Call) -> Outputs:
    """One NaN of v spoils the whole channel."""
    outputs = honestly(call)
    spoilt = np.isnan(outputs["out"]).any(axis=(0, 1, 2), keepdims=True)
    return outputs | {"out": np.where(spoilt, np.array(np.nan, outputs["out"].dtype), outputs["out"])}


def test_a_nan_that_reaches_other_heads_is_rejected() -> None:
    finding = finding_of(NAME, Faulty(leaks_into_all_rows), case_of())
    assert finding.status is Status.NONFINITE
    assert "leaks into" in finding.reasons[0]


def replaces_by_zero_key(honestly: Callable[[Call], Outputs], call: Call) -> Outputs:
    """A kernel that reads every non-finite v as 0 and marks nothing."""
    v = call.arrays["v"]
    cleaned = np.where(np.isfinite(v.astype(np.float32)), v, np.array(0, v.dtype))
    return honestly(replace(call, arrays={**call.arrays, "v": cleaned}))


def test_a_value_replaced_by_zero_is_rejected() -> None:
    finding = finding_of(NAME, Faulty(replaces_by_zero_key), case_of())
    assert finding.status is Status.NONFINITE
    assert any(reason.startswith("inf in v: lost") for reason in finding.reasons)


def test_dropout_is_not_judged() -> None:
    assert finding_of(NAME, "numpy_tiled", case_of(dropout_p=0.3)).status is Status.UNSUPPORTED
