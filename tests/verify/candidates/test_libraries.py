"""Adapters of attention libraries: each says why it cannot run, and those that can are right where a row sees a key."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from verify.candidate import Call, RefusedError
from verify.candidates import builtin_names, load
from verify.candidates.masks import blind_rows, keep_mask, positional_keep
from verify.candidates.openvino_attention import MODELS_KEPT, compiled_model
from verify.candidates.torch_arrays import to_array
from verify.candidates.torch_device import ALIGNMENT, to_device
from verify.case import Case
from verify.inputs import make_inputs
from verify.known import known_reason
from verify.oracle import reference_outputs
from verify.record import Record
from verify.runner import RunOptions, run_cases
from verify.tolerance import derive_bounds
from verify.verdict import Status

ON_CPU = (
    "onnxruntime_attention",
    "onnxruntime_gqa",
    "onnxruntime_gqa_fp16",
    "jax_attention",
    "mlx_attention",
    "openvino_attention",
)
ON_GPU = tuple(
    name
    for name in builtin_names()
    if name.startswith(("torch_cuda", "torch_flex_cuda", "flash", "xformers", "triton"))
)
SHAPE = "attn1:b=2,sq=5,sk=9,h=2,d=16,dtype="
CASES = {
    "plain": SHAPE + "fp32,seed=1",
    "fp16": SHAPE + "fp16,seed=1",
    "bf16": SHAPE + "bf16,seed=1",
    "causal": SHAPE + "fp32,causal=1,seed=1",
    "top_left": SHAPE + "fp32,causal=1,align=top_left,seed=1",
    "square": "attn1:b=1,sq=7,sk=7,h=2,d=16,dtype=fp32,causal=1,seed=1",
    "window": SHAPE + "fp32,window=2+1,seed=1",
    "bias": SHAPE + "fp32,bias=additive,causal=1,seed=1",
    "gqa": "attn1:b=1,sq=5,sk=9,h=4,hkv=2,d=16,dtype=fp32,causal=1,seed=1",
    "softcap": SHAPE + "fp32,softcap=2.0,seed=1",
    "causal_fp16": SHAPE + "fp16,causal=1,softcap=2.0,seed=1",
    "sink": SHAPE + "fp32,causal=1,sink=1,window=2+0,seed=1",
    "sink_with_mask": SHAPE + "fp32,causal=1,sink=1,pattern=boolean,keep=0.5,bias=additive,softcap=2.0,seed=1",
    "decode": "attn1:b=3,sq=1,sk=9,h=4,hkv=2,d=16,dtype=fp16,causal=1,window=4+0,seed=1",
}


def record_of(name: str, case_id: str) -> Record:
    options = RunOptions(candidates=(name,), timeout_s=300.0, run_id="test")
    (record,) = run_cases([Case.parse(case_id)], options, on_line=lambda line: None)
    return record


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", ON_CPU)
def test_library_is_right_wherever_a_row_sees_a_key(name: str, case: str) -> None:
    reason = load(name).unavailable()
    if reason is not None:
        pytest.skip(reason)
    record = record_of(name, CASES[case])
    problem = Case.parse(record.case_id).problem
    failing = [finding for finding in record.verdict.findings if finding.status.is_failure]
    assert [finding for finding in failing if known_reason(name, problem, finding) is None] == []


@pytest.mark.parametrize(
    "case_id",
    [
        "attn1:b=3,sq=2,sk=100,h=14,hkv=2,d=96,dv=64,dtype=fp16,recipe=near_overflow,seed=303003012",
        "attn1:b=2,sq=3,sk=129,h=9,hkv=3,d=64,dtype=fp16,causal=1,align=top_left,layout=broadcast,recipe=subnormal,seed=0",
    ],
)
def test_heads_of_a_group_are_summed_as_mlx_declares(case_id: str) -> None:
    if reason := load("mlx_attention").unavailable():
        pytest.skip(reason)
    options = RunOptions(candidates=("mlx_attention",), checks=("backward",), timeout_s=300.0, run_id="test")
    (record,) = run_cases([Case.parse(case_id)], options, on_line=lambda line: None)
    assert record.verdict.status is Status.PASS


def test_openvino_keeps_few_models() -> None:
    if reason := load("openvino_attention").unavailable():
        pytest.skip(reason)
    for keys in range(1, MODELS_KEPT + 3):
        case = Case.parse(f"attn1:b=1,sq=1,sk={keys},h=1,d=8,dtype=fp32")
        load("openvino_attention").run(Call(problem=case.problem, arrays=make_inputs(case).arrays, backward=False))
    assert compiled_model.cache_info().currsize == MODELS_KEPT


@pytest.mark.parametrize(
    "form",
    [
        "sq=2,sk=6,lenk=2+6+4,causal=1",
        "sq=2,sk=6,lenk=3+6+4,causal=1,align=top_left",
        "sq=5,sk=5,lenk=5+3+1,causal=1",
        "sq=3,sk=7,lenk=3+7+5,causal=1,window=2+0",
        "sq=1,sk=7,lenk=7+1+3,causal=1,bias=additive",
    ],
)
@pytest.mark.parametrize("name", ["onnxruntime_attention", "onnxruntime_gqa", "jax_attention"])
def test_diagonal_follows_the_length_of_each_sequence(name: str, form: str) -> None:
    candidate, case = load(name), Case.parse(f"attn1:b=3,h=2,d=8,dtype=fp32,seed=1,{form}")
    reason = candidate.unavailable() or candidate.contract.capabilities.refusal(case.problem)
    if reason is not None:
        pytest.skip(reason)
    # Finite padding: what NaN there does is known.
    arrays = {key: np.nan_to_num(a) if key in ("q", "k", "v") else a for key, a in make_inputs(case).arrays.items()}
    got = candidate.run(Call(problem=case.problem, arrays=arrays, backward=False)).outputs["out"]
    expected = reference_outputs(case.problem, arrays, backward=False, with_dlse=False).outputs
    sees = np.isfinite(expected["lse"]).swapaxes(1, 2)
    arithmetic = candidate.contract.arithmetic["fp32"]
    bounds = derive_bounds(case.problem, arrays, expected, arithmetic, backward=False, with_dlse=False)
    assert (np.abs(got - expected["out"]) <= bounds["out"].total)[sees].all()


def test_gqa_with_sink_is_really_judged() -> None:
    if reason := load("onnxruntime_gqa").unavailable():
        pytest.skip(reason)
    for case in ("sink", "sink_with_mask"):
        assert record_of("onnxruntime_gqa", CASES[case]).verdict.status is Status.PASS


@pytest.mark.parametrize("name", ON_GPU + ON_CPU)
def test_adapter_loads_and_gives_a_reason_where_it_cannot_run(name: str) -> None:
    code = f"from verify.candidates import load; c = load({name!r}); print(c.name, '|', c.unavailable())"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    loaded, _, reason = printed.stdout.strip().partition(" | ")
    assert loaded == name
    assert reason


@pytest.mark.parametrize("name", ON_GPU + ON_CPU)
def test_undeclared_problem_is_refused_before_the_library_is_asked(name: str) -> None:
    case = Case.parse("attn1:b=1,sq=2,sk=2,h=1,d=8,dtype=fp32,sink=1")
    with pytest.raises(RefusedError, match=r"declared|required"):
        load(name).run(Call(problem=case.problem, arrays=make_inputs(case).arrays, backward=False))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("causal=1", [[1, 1, 0], [1, 1, 1]]),
        ("causal=1,align=top_left", [[1, 0, 0], [1, 1, 0]]),
        ("window=0+1", [[0, 1, 1], [0, 0, 1]]),
        ("causal=1,window=1+inf,align=top_left", [[1, 0, 0], [1, 1, 0]]),
    ],
)
def test_positional_masks_follow_the_diagonal(options: str, expected: Any) -> None:
    keep = positional_keep(Case.parse(f"attn1:b=1,sq=2,sk=3,h=1,d=8,dtype=fp32,{options}").problem)
    assert np.array_equal(keep, np.array(expected, dtype=bool))


def test_every_length_has_its_diagonal() -> None:
    problem = Case.parse("attn1:b=2,sq=2,sk=4,h=1,d=8,dtype=fp32,causal=1,lenk=2+4").problem
    keep = positional_keep(problem)
    expected = [[[1, 0, 0, 0], [1, 1, 0, 0]], [[1, 1, 1, 0], [1, 1, 1, 1]]]
    assert np.array_equal(keep, np.array(expected, dtype=bool)[:, None])


@pytest.mark.parametrize(
    ("case_id", "expected"),
    [
        ("attn1:b=2,sq=3,sk=2,h=1,d=8,dtype=fp32,causal=1", [1, 0, 0]),
        ("attn1:b=1,sq=3,sk=2,h=1,d=8,dtype=fp32", [0, 0, 0]),
        ("attn1:b=2,sq=2,sk=2,h=1,d=8,dtype=fp32,causal=1,cuq=0+2+3,cuk=0+1+3", [1, 0, 0]),
        ("attn1:b=2,sq=2,sk=2,h=1,d=8,dtype=fp32,cuq=0+2+3,cuk=0+0+2", [1, 1, 0]),
    ],
)
def test_rows_without_keys_follow_from_positions(case_id: str, expected: list[int]) -> None:
    assert blind_rows(Case.parse(case_id).problem).tolist() == list(map(bool, expected))


@pytest.mark.parametrize("layout", ["bshd", "sliced", "offset", "broadcast", "packed_qkv"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_device_copy_keeps_values_strides_gaps_and_alignment(layout: str, dtype: str) -> None:
    pytest.importorskip("torch")
    case = Case.parse(f"attn1:b=2,sq=3,sk=3,h=2,d=8,dtype={dtype},layout={layout},seed=2")
    array = make_inputs(case).arrays["k"]
    tensor = to_device(array, "cpu")
    back = to_array(tensor)
    assert (back.shape, back.strides, back.tobytes()) == (array.shape, array.strides, array.tobytes())
    low = np.lib.array_utils.byte_bounds
    assert (low(back)[0] - tensor.untyped_storage().data_ptr()) % ALIGNMENT == low(array)[0] % ALIGNMENT


def test_block_mask_is_spread_over_its_blocks() -> None:
    case = Case.parse("attn1:b=1,sq=5,sk=7,h=2,d=8,dtype=fp32,pattern=block_sparse,block=2x3,keep=0.5,seed=3")
    arrays = make_inputs(case).arrays
    keep = keep_mask(Call(problem=case.problem, arrays=arrays, backward=False))
    assert keep is not None
    for row, key in ((0, 0), (1, 2), (2, 3), (4, 6)):
        assert np.array_equal(keep[:, :, row, key], arrays["block_mask"][:, :, row // 2, key // 3])
