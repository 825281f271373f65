"""What the CUDA adapters do on the host: requests, reasons, units. The kernels themselves need a GPU."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from verify.candidate import Call
from verify.candidates import load
from verify.candidates.flashinfer_attention import natural_lse, requests
from verify.candidates.torch_contracts import flash_contract
from verify.candidates.torch_cuda import refusal_reason
from verify.case import Case
from verify.inputs import make_inputs

FUSED = ("torch_cuda_flash", "torch_cuda_efficient", "torch_cuda_cudnn", "flash_attn_2", "flashinfer_prefill")
NOISE = ["Flash attention kernel not used because:", "Flash attention has been runtime disabled."]


def call_of(text: str) -> Call:
    case = Case.parse(text)
    return Call(problem=case.problem, arrays=make_inputs(case).arrays, backward=False)


def test_each_row_is_a_request_that_sees_the_keys_up_to_its_diagonal() -> None:
    seen, indptr, pages, last = requests(call_of("attn1:b=2,sq=4,sk=3,h=2,d=64,dtype=fp16,causal=1"))
    assert seen.tolist() == [0, 1, 2, 3] * 2
    assert indptr.tolist() == [0, 0, 1, 2, 3, 3, 4, 5, 6]
    assert pages.tolist() == [0, 0, 0, 1, 1, 1]
    assert last.tolist() == [0, 1, 2, 3] * 2


def test_requests_name_the_pages_of_the_table_and_the_keys_on_the_last_one() -> None:
    call = call_of("attn1:b=3,sq=1,sk=65,h=2,d=64,dtype=fp16,lenk=65+0+16,page=16")
    seen, indptr, pages, last = requests(call)
    table = call.arrays["page_table"]
    assert seen.tolist() == [65, 0, 16]
    assert indptr.tolist() == [0, 5, 5, 6]
    assert pages.tolist() == [*table[0, :5], table[2, 0]]
    assert last.tolist() == [1, 0, 16]


def test_lse_in_base_2_becomes_natural_and_heads_first() -> None:
    base_2 = np.array([[[1.0, -np.inf], [3.0, 0.0]]], dtype=np.float32)
    expected = np.array([[[1.0, 3.0], [-np.inf, 0.0]]]) * math.log(2.0)
    assert natural_lse(base_2).dtype == np.float32
    np.testing.assert_array_equal(natural_lse(base_2), expected.astype(np.float32))


@pytest.mark.parametrize(
    "heard", [[*NOISE, "head_dim should be a multiple of 8"], ["head_dim should be a multiple of 8"]]
)
def test_refusal_carries_what_the_asked_backend_said(heard: list[str]) -> None:
    assert refusal_reason(heard, seqlen_k=5) == "head_dim should be a multiple of 8"


def test_refusal_of_one_key_is_named_though_torch_says_it_once_only() -> None:
    assert "length 1" in refusal_reason(NOISE, seqlen_k=1)
    assert refusal_reason(NOISE, seqlen_k=2) == "no available kernel"


@pytest.mark.parametrize("name", FUSED)
def test_fused_kernels_do_not_declare_addresses_off_by_one_element(name: str) -> None:
    problem = Case.parse("attn1:b=1,sq=8,sk=8,h=1,d=64,dtype=fp16,layout=offset").problem
    assert load(name).contract.capabilities.refusal(problem) == "layout offset not declared"


def test_version_4_alone_does_not_pass_for_version_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "flash_attn" / "cute").mkdir(parents=True)
    (tmp_path / "flash_attn" / "cute" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "flash-attn)" in str(load("flash_attn_2").unavailable())
    assert "not installed" not in str(load("flash_attn_4").unavailable())


def test_cpu_flash_declares_empty_sequences_from_the_release_that_answers_them() -> None:
    assert not flash_contract((2, 11)).capabilities.empty
    assert flash_contract((2, 13)).capabilities.empty
