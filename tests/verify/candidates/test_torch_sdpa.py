"""torch's SDPA backends run as asked, say what ran, and match the formula as far as their contract says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.verify.candidates.asking import FEATURES, arrays_of, ask, distance, problem_of
from tests.verify.candidates.plain import plain_attention
from verify.candidate import RefusedError
from verify.candidates import load
from verify.candidates.torch_contracts import FLASH
from verify.candidates.torch_sdpa import TorchSdpa

torch = pytest.importorskip("torch")
BACKENDS = {"torch_flash": "FLASH_ATTENTION", "torch_math": "MATH"}
# As for the emulated kernel: two sums of at most 26 terms whose sizes reach 4, twice as much for the 3 ulp of exp.
FP32_LIMIT = 4 * 26 * 4 * 2.0**-24


def declared(name: str) -> list[str]:
    """Names of the problems of FEATURES that the candidate declares."""
    capabilities = load(name).contract.capabilities
    return [feature for feature, fields in FEATURES.items() if capabilities.refusal(problem_of(**fields)) is None]


CASES = [(name, feature) for name in BACKENDS for feature in declared(name)]


@pytest.mark.parametrize(("name", "feature"), CASES)
def test_every_declared_feature_runs_and_equals_the_formula(name: str, feature: str) -> None:
    problem = problem_of(**FEATURES[feature])
    arrays = arrays_of(problem)
    outputs = ask(load(name), problem, arrays).outputs
    expected = plain_attention(problem, arrays)
    assert set(outputs) == set(expected) & load(name).contract.capabilities.outputs
    assert max(distance(outputs, expected).values()) < FP32_LIMIT


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("name", BACKENDS)
def test_reduced_precision_is_off_by_its_own_roundings(name: str, dtype: str) -> None:
    problem = problem_of(dtype, causal=True, nheads=4, nheads_kv=2)
    arrays = arrays_of(problem)
    reply = ask(load(name), problem, arrays)
    # P, dS and the result are rounded once each, and the sums over one group twice, at sizes up to 4.
    limit = 16 * (2.0**-8 if dtype == "bf16" else 2.0**-11)
    assert max(distance(reply.outputs, plain_attention(problem, arrays)).values()) < limit
    assert {array.dtype for array in reply.outputs.values()} <= {arrays["q"].dtype, np.dtype(np.float32)}


@pytest.mark.parametrize(("name", "backend"), BACKENDS.items())
def test_the_route_names_the_backend_that_ran(name: str, backend: str) -> None:
    problem = problem_of(causal=True)
    route = ask(load(name), problem, arrays_of(problem)).route
    assert (route.backend, route.asked, route.fallback_reason) == (backend, backend, "")
    assert route.details["torch"] == torch.__version__


@pytest.mark.parametrize("fields", [{"seqlen_k": 0}, {"seqlen_q": 0}])
def test_an_empty_sequence_runs_no_backend_and_the_route_says_so(fields: dict[str, Any]) -> None:
    problem = problem_of(**fields)
    reply = ask(load("torch_flash"), problem, arrays_of(problem))
    assert reply.route.backend == "none"
    assert "empty sequence" in reply.route.fallback_reason


@pytest.mark.parametrize("alignment", ["bottom_right", "top_left"])
@pytest.mark.parametrize("name", BACKENDS)
def test_causal_rows_without_a_key_are_empty(name: str, alignment: str) -> None:
    problem = problem_of(causal=True, alignment=alignment, seqlen_q=9, seqlen_k=4, pattern="boolean", keep_fraction=0.5)
    arrays = arrays_of(problem)
    outputs = ask(load(name), problem, arrays).outputs
    dead = plain_attention(problem, arrays)["lse"] == -np.inf
    assert dead.any()
    assert not outputs["out"].swapaxes(1, 2)[dead].any()
    assert not outputs["dq"].swapaxes(1, 2)[dead].any()


def test_torch_says_why_the_flash_backend_does_not_apply() -> None:
    wider = replace(FLASH.capabilities, features=FLASH.capabilities.features | {"dv"})
    candidate = TorchSdpa("torch_flash", "FLASH_ATTENTION", replace(FLASH, capabilities=wider))
    problem = problem_of(head_dim_v=12)
    with pytest.raises(RefusedError, match="requires q,k,v to have the same last dimension"):
        ask(candidate, problem, arrays_of(problem))


def test_undeclared_problems_are_refused_before_torch_sees_them() -> None:
    problem = problem_of(sink=True)
    with pytest.raises(RefusedError, match="sink not declared"):
        ask(load("torch_math"), problem, arrays_of(problem))


def test_the_number_of_threads_is_restored() -> None:
    before = torch.get_num_threads()
    problem = problem_of()
    ask(load("torch_flash"), problem, arrays_of(problem))
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("name", BACKENDS)
def test_inputs_are_only_read(name: str) -> None:
    problem = problem_of("bf16", bias="additive", causal=True)
    arrays = arrays_of(problem)
    before = {key: array.tobytes() for key, array in arrays.items()}
    ask(load(name), problem, arrays)
    assert before == {key: array.tobytes() for key, array in arrays.items()}


@pytest.mark.parametrize(("dtype", "low", "high"), [("fp32", 0, 6), ("fp16", 300, 1000), ("bf16", 300, 1000)])
def test_flash_lse_shows_the_declared_exponential(dtype: str, low: float, high: float) -> None:
    # One key at 0 and 15 at -t: lse = log(1 + 15 exp(-t)), at most exp's own error away, in units of 2^-23.
    problem = problem_of(dtype, seqlen_q=64, seqlen_k=16, nheads=1, batch=1, softmax_scale=1.0)
    arrays = {key: np.zeros_like(array) for key, array in arrays_of(problem).items()}
    arrays["q"][0, :, 0, 0] = np.arange(64) / 64
    arrays["k"][0, 1:, 0, 0] = -1.0
    lse = ask(load("torch_flash"), problem, arrays, backward=False).outputs["lse"].astype(float)
    exact = np.log1p(15 * np.exp(-np.arange(64) / 64))
    assert low <= np.abs(lse - exact).max() * 2.0**23 <= high


def test_the_gradient_of_a_shared_bias_is_rounded_once_beside_a_mask() -> None:
    problem = problem_of("bf16", bias="additive", bias_broadcast=(True, True), pattern="boolean", nheads=6, nheads_kv=2)
    arrays = arrays_of(problem)
    dbias = ask(load("torch_math"), problem, arrays).outputs["dbias"].astype(float)
    exact = plain_attention(problem, arrays)["dbias"]
    # Half an ulp of bf16 and the fp32 sums of 12 heads; twelve roundings to bf16 would show where the sum cancels.
    assert (np.abs(dbias - exact) <= 2.0**-8 * np.abs(exact) + 12 * 26 * 2.0**-24).all()
