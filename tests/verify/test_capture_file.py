"""Captured tensors come back bit for bit under an id that holds their hash; anything else is refused in one line."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from verify.capture_file import capture_cases, file_hash, read_capture
from verify.case import Case
from verify.errors import UsageError
from verify.inputs import make_inputs

SHAPES = {"q": (2, 5, 4, 8), "k": (2, 7, 2, 8), "v": (2, 7, 2, 16), "dout": (2, 5, 4, 16)}


def tensors(dtype: Any = np.float16) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(shape).astype(dtype) for name, shape in SHAPES.items()}


def write(path: Path, **entries: Any) -> str:
    np.savez(path, **entries)
    return str(path)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_an_npz_comes_back_bit_for_bit_through_its_case_id(tmp_path: Path, dtype: Any) -> None:
    captured = tensors(dtype)
    (case,) = capture_cases(write(tmp_path / "layer 3.npz", **captured))
    arrays = make_inputs(Case.parse(case.case_id)).arrays
    for name, array in captured.items():
        assert arrays[name].tobytes() == array.tobytes()
    assert case.origin == "capture"


def test_bf16_is_read_from_uint16_bits(tmp_path: Path) -> None:
    captured = tensors(ml_dtypes.bfloat16)
    path = write(tmp_path / "x.npz", **{name: array.view(np.uint16) for name, array in captured.items()})
    (case,) = capture_cases(path)
    assert case.problem.dtype == "bf16"
    assert make_inputs(case).arrays["v"].tobytes() == captured["v"].tobytes()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, ml_dtypes.bfloat16])
def test_safetensors_come_back_bit_for_bit(tmp_path: Path, dtype: Any) -> None:
    save_file = pytest.importorskip("safetensors.numpy").save_file
    captured = tensors(dtype)
    save_file(captured, tmp_path / "x.safetensors")
    arrays = make_inputs(capture_cases(str(tmp_path / "x.safetensors"))[0]).arrays
    assert all(arrays[name].tobytes() == array.tobytes() for name, array in captured.items())


def test_optional_entries_enter_the_problem(tmp_path: Path) -> None:
    mask = np.random.default_rng(1).random((2, 4, 5, 7)) < 0.5
    path = write(tmp_path / "x.npz", **tensors(), mask=mask, softmax_scale=0.3, causal=True)
    (case,) = capture_cases(path)
    assert (case.problem.softmax_scale, case.problem.causal, case.problem.pattern) == (0.3, True, "boolean")
    np.testing.assert_array_equal(make_inputs(case).arrays["mask"], mask)


def test_a_missing_dout_is_drawn(tmp_path: Path) -> None:
    captured = tensors()
    del captured["dout"]
    dout = make_inputs(capture_cases(write(tmp_path / "x.npz", **captured))[0]).arrays["dout"]
    assert dout.shape == SHAPES["dout"]
    assert 0.5 < dout.astype(float).std() < 1.5


def test_non_finite_captured_values_survive(tmp_path: Path) -> None:
    captured = tensors()
    captured["k"][0, 0, 0, :3] = [np.nan, np.inf, -np.inf]
    k = make_inputs(capture_cases(write(tmp_path / "x.npz", **captured))[0]).arrays["k"]
    np.testing.assert_array_equal(k[0, 0, 0, :3], captured["k"][0, 0, 0, :3])


def test_replay_refuses_a_file_with_other_content(tmp_path: Path) -> None:
    path = write(tmp_path / "x.npz", **tensors())
    (case,) = capture_cases(path)
    write(tmp_path / "x.npz", **{**tensors(), "q": np.zeros(SHAPES["q"], np.float16)})
    with pytest.raises(UsageError, match="capture:sha='sha256-"):
        make_inputs(case)
    assert make_inputs(capture_cases(path)[0]).arrays["q"].astype(float).sum() == 0


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("no k", {"k": None}, "missing k"),
    ("three axes", {"q": np.zeros((5, 4, 8), np.float16)}, "shape of q"),
    ("keys unlike values", {"v": np.zeros((2, 6, 2, 16), np.float16)}, "shape of v"),
    ("head dims differ", {"k": np.zeros((2, 7, 2, 9), np.float16)}, "shape of k"),
    ("dout unlike q", {"dout": np.zeros((2, 4, 4, 16), np.float16)}, "shape of dout"),
    ("heads", {"k": np.zeros((2, 7, 3, 8), np.float16), "v": np.zeros((2, 7, 3, 16), np.float16)}, "nheads=4"),
    ("fp64", {"q": np.zeros(SHAPES["q"])}, "dtype of q"),
    ("mixed", {"q": np.zeros(SHAPES["q"], np.float32)}, "one dtype"),
    ("unknown entry", {"weights": np.zeros(3)}, "weights"),
    ("mask shape", {"mask": np.zeros((5, 7), bool)}, "shape of mask"),
    ("mask dtype", {"mask": np.zeros((2, 4, 5, 7), np.float32)}, "dtype of mask"),
    ("scale", {"softmax_scale": np.zeros(2)}, "softmax_scale"),
    ("objects", {"q": np.array([{}], dtype=object)}, "without pickled objects"),
]


@pytest.mark.parametrize(("entries", "named"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_a_wrong_entry_is_refused_in_one_line(tmp_path: Path, entries: dict[str, Any], named: str) -> None:
    merged = {name: array for name, array in {**tensors(), **entries}.items() if array is not None}
    with pytest.raises(UsageError) as refusal:
        capture_cases(write(tmp_path / "x.npz", **merged))
    assert named in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "content"), [("x.npz", b"no zip"), ("x.npz", b""), ("x.pt", b"1"), ("x.npz", b"PK\x03\x04")]
)
def test_an_unreadable_file_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match="expected a"):
        read_capture(str(tmp_path / name))


def test_an_unreadable_safetensors_file_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    (tmp_path / "x.safetensors").write_bytes(b"\x00" * 20)
    with pytest.raises(UsageError, match="expected a safetensors file"):
        read_capture(str(tmp_path / "x.safetensors"))


def test_a_missing_file_or_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="expected a readable file"):
        file_hash(str(tmp_path / "none.npz"))
    with pytest.raises(UsageError, match="capture:path=''"):
        make_inputs(Case.parse("attn1:b=1,recipe=capture"))


def test_missing_safetensors_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.safetensors").write_bytes(b"any")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="extra `report`"):
        read_capture(str(tmp_path / "x.safetensors"))
