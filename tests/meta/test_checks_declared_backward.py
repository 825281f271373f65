"""Declared backward: roundings and a delta other than the declared ones are told; they are never a failure."""

from typing import Any

import pytest

from tests.meta.running import case_of, finding_of
from tests.verify.candidates.asking import FEATURES
from verify.candidate import Call, Reply
from verify.candidates import load
from verify.candidates.numpy_tiled import NumpyTiled, default_scheme, with_arithmetic
from verify.case import Recipe
from verify.verdict import Status

NAME = "declared_backward"
SEVERAL_TILES: dict[str, Any] = {"seqlen_k": 150, "head_dim": 32}
RECIPES = {"normal": Recipe.of("normal"), "logits": Recipe.of("logits", max=10.0)}


class UnderTheDefaultContract:
    """A kernel of another arithmetic than it declares."""

    def __init__(self, **arithmetic: Any) -> None:
        schemes = {dtype: with_arithmetic(default_scheme(dtype), **arithmetic) for dtype in ("fp32", "fp16", "bf16")}
        self.name = "undeclared"
        self.contract = load("numpy_tiled").contract
        self._kernel = NumpyTiled(schemes)

    def unavailable(self) -> None:
        """Always available."""

    def run(self, call: Call) -> Reply:
        return self._kernel.run(call)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize(
    "variant",
    ["numpy_tiled", "numpy_tiled:tile16", "numpy_tiled:rtz16", "numpy_tiled:fast_exp", "numpy_tiled:rounded_ds"],
)
def test_a_kernel_that_does_what_it_declares_conforms(dtype: str, recipe: str, variant: str) -> None:
    finding = finding_of(NAME, variant, case_of(RECIPES[recipe], dtype=dtype, sink=True, **SEVERAL_TILES))
    assert (finding.status, finding.reasons) == (Status.PASS, ())


@pytest.mark.parametrize("feature", [name for name in FEATURES if name not in ("no_keys", "no_rows")])
def test_every_feature_conforms(feature: str) -> None:
    finding = finding_of(NAME, "numpy_tiled", case_of(dtype="bf16", **FEATURES[feature]))
    assert (finding.status, finding.reasons) == (Status.PASS, ())


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize(
    ("arithmetic", "tensors"),
    [
        ({"probs_backward_dtype": "fp32"}, ("dv",)),
        ({"dscores_dtype": "fp32"}, ("dq", "dk")),
        ({"probs_dscores_dtype": "bf16"}, ("dq", "dk")),
        ({"scale_on_dscores": True}, ("dq", "dk")),
        ({"delta_from": "accumulator"}, ("dq", "dk")),
        ({"scale_on": "q"}, ("dq", "dk", "dv")),
    ],
)
def test_another_arithmetic_than_the_declared_deviates_and_passes(
    dtype: str, arithmetic: dict[str, Any], tensors: tuple[str, ...]
) -> None:
    finding = finding_of(NAME, UnderTheDefaultContract(**arithmetic), case_of(dtype=dtype, **SEVERAL_TILES))
    assert finding.status is Status.PASS
    assert all(reason.startswith("deviates from declared arithmetic") for reason in finding.reasons)
    assert tuple(reason.rsplit(maxsplit=1)[-1] for reason in finding.reasons) == tensors


@pytest.mark.parametrize(
    ("candidate", "dtype", "reason"),
    [
        ("numpy_tiled", "fp32", "no rounding below fp32"),
        ("numpy_tiled:delta_accumulator", "bf16", "what the kernel does not return"),
        ("numpy_tiled:round_per_tile", "bf16", "between tiles or heads"),
        ("numpy_tiled:eager", "bf16", "normalised P or dP"),
    ],
)
def test_a_backward_whose_order_or_inputs_are_not_declared_is_not_replayed(
    candidate: str, dtype: str, reason: str
) -> None:
    finding = finding_of(NAME, candidate, case_of(dtype=dtype))
    assert finding.status is Status.UNSUPPORTED
    assert reason in finding.reasons[0]
