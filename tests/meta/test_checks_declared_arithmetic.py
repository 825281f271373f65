"""Declared arithmetic: another order of tiles than the declared one is told; it is never a failure."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.meta.running import Faulty, Outputs, case_of, finding_of
from verify.candidate import Call
from verify.case import Recipe
from verify.verdict import Status

NAME = "declared_arithmetic"
SEVERAL_TILES: dict[str, Any] = {"seqlen_k": 150, "head_dim": 32}


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("variant", ["numpy_tiled", "numpy_tiled:tile16", "numpy_tiled:l_rounded", "numpy_tiled:rtz16"])
def test_a_kernel_that_does_what_it_declares_conforms(dtype: str, variant: str) -> None:
    finding = finding_of(NAME, variant, case_of(dtype=dtype, sink=True, **SEVERAL_TILES))
    assert (finding.status, finding.reasons) == (Status.PASS, ())


def test_tiles_in_another_order_than_the_declared_deviate_and_pass() -> None:
    case = case_of(Recipe.of("logits", max=10.0), dtype="fp16", **SEVERAL_TILES)
    finding = finding_of(NAME, "numpy_tiled:reverse", case)
    assert finding.status is Status.PASS
    assert finding.reasons[0].startswith("deviates from declared arithmetic")


def test_an_output_rounded_twice_deviates() -> None:
    def fault(honestly: Callable[[Call], Outputs], call: Call) -> Outputs:
        outputs = honestly(call)
        coarse = outputs["out"].astype(np.float32).astype(np.float16) * np.float16(1.0 + 2.0**-9)
        return outputs | {"out": coarse.astype(outputs["out"].dtype)}

    assert finding_of(NAME, Faulty(fault), case_of(dtype="fp16")).reasons


def test_fp32_has_nothing_to_replay() -> None:
    assert finding_of(NAME, "numpy_tiled", case_of()).status is Status.UNSUPPORTED
