"""Reads q, k, v, dout captured from a model (.npz or .safetensors) and makes cases of them. Never writes.

Arrays are (batch, seqlen, nheads, head_dim). A .npz stores bf16 as uint16 bits; entries may add `mask` (bool,
batch x nheads x seqlen_q x seqlen_k, True = visible), `softmax_scale` and `causal`. A file of several calls prefixes
each entry with its number, `0/q`; `dump.npz#0` names one call of it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import zipfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verify.case import Case, Recipe
from verify.dtypes import BF16, FP16, FP32, STORAGE_DTYPES, name_of
from verify.errors import UsageError, require
from verify.problem import AttentionProblem, default_scale

Array = NDArray[Any]

TENSORS = ("q", "k", "v", "dout")
ENTRIES = (*TENSORS, "mask", "softmax_scale", "causal")
# The package's own NumPy loader knows no bf16 in every release, so its raw entries are read.
SAFETENSORS_DTYPES = {
    "F64": np.dtype(np.float64),
    "F32": FP32.numpy_dtype,
    "F16": FP16.numpy_dtype,
    "BF16": BF16.numpy_dtype,
    "BOOL": np.dtype(bool),
}
HASH_PREFIX = "sha256-"
HASH_DIGITS = 16


def call_entry(call: int, count: int, name: str) -> str:
    """Name of an entry of one of `count` calls in a file."""
    return name if count == 1 else f"{call}/{name}"


def file_hash(path: str) -> str:
    """`sha256-` and the first 16 hex digits of the content: enough to notice another file under the same name."""
    return HASH_PREFIX + hashlib.sha256(_read_bytes(_split(path)[0])).hexdigest()[:HASH_DIGITS]


def read_capture(path: str, *, sha: str = "") -> Mapping[str, Array]:
    """Entries of a capture by name, bf16 as ml_dtypes.bfloat16; `path#n` is the n-th of several calls.

    Raises
    ------
    UsageError
        The file is missing, unreadable or of another kind, an entry is unknown or has a wrong shape or dtype, or the
        content does not have the hash `sha`.
    """
    found = file_hash(path)
    require(not sha or found == sha, "capture:sha", sha, f"the hash {found} of {path}")
    return _load(path, found)


def capture_cases(path: str) -> tuple[Case, ...]:
    """The cases of a capture, one for each call in it: a problem from its shapes, dtype, softmax_scale and causal.

    Raises
    ------
    UsageError
        As read_capture, and for shapes that are no attention problem.
    """
    file, call = _split(path)
    numbers = _call_numbers(file) if not call else ()
    return tuple(_case(f"{file}#{number}") for number in numbers) if numbers else (_case(path),)


def _case(path: str) -> Case:
    tensors = read_capture(path)
    missing = [name for name in ("q", "k", "v") if name not in tensors]
    require(not missing, "capture", path, "entries q, k and v, missing " + ", ".join(missing))
    batch, seqlen_q, nheads, head_dim = tensors["q"].shape
    problem = AttentionProblem(
        batch=batch,
        seqlen_q=seqlen_q,
        seqlen_k=tensors["k"].shape[1],
        nheads=nheads,
        nheads_kv=tensors["k"].shape[2],
        head_dim=head_dim,
        head_dim_v=tensors["v"].shape[3],
        dtype=name_of(tensors["q"].dtype),
        softmax_scale=_number(tensors, "softmax_scale", default_scale(head_dim)),
        causal=bool(_number(tensors, "causal", 0.0)),
        pattern="boolean" if "mask" in tensors else "none",
    )
    _check_shapes(path, tensors, problem)
    recipe = Recipe.of("capture", path=path, sha=file_hash(path))
    return Case(problem=problem, recipe=recipe, seed=0, origin="capture")


def _split(path: str) -> tuple[str, str]:
    """(file, number of the call or empty text)."""
    file, separator, call = path.rpartition("#")
    return (file, call) if separator and call.isdecimal() else (path, "")


def _call_numbers(file: str) -> tuple[int, ...]:
    """Numbers of the calls in a file of several; none where the entries have no prefix."""
    if not file.endswith(".npz"):
        return ()
    names = _load_npz(file, _read_bytes(file))
    return tuple(sorted({int(name.partition("/")[0]) for name in names if name.partition("/")[0].isdecimal()}))


def _read_bytes(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"capture={path!r}: expected a readable file ({error.strerror})") from error


@lru_cache(maxsize=2)
def _load(path: str, content_hash: str) -> Mapping[str, Array]:
    """Entries of the file; the hash is the key that tells two contents of one path apart."""
    file, call = _split(path)
    suffix = Path(file).suffix
    require(suffix in (".npz", ".safetensors"), "capture", path, "a .npz or .safetensors file")
    content = _read_bytes(file)
    tensors = _load_npz(file, content) if suffix == ".npz" else _load_safetensors(file, content)
    if call:
        prefix = f"{call}/"
        tensors = {name.removeprefix(prefix): array for name, array in tensors.items() if name.startswith(prefix)}
        require(bool(tensors), "capture", path, f"entries named {prefix}q, {prefix}k, ... in {file}")
    unknown = sorted(set(tensors) - set(ENTRIES))
    require(not unknown, f"capture {path}", unknown, "entries out of " + ", ".join(ENTRIES))
    for name in TENSORS:
        if name in tensors:
            tensors[name] = _operand(path, name, tensors[name])
    if "mask" in tensors:
        require(tensors["mask"].dtype == bool, f"capture {path}: dtype of mask", str(tensors["mask"].dtype), "bool")
    dtypes = sorted({name_of(tensors[name].dtype) for name in TENSORS if name in tensors})
    require(len(dtypes) <= 1, f"capture {path}", dtypes, "one dtype for q, k, v and dout")
    return tensors


def _load_npz(path: str, content: bytes) -> dict[str, Array]:
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, AttributeError) as error:
        raise UsageError(f"capture={path!r}: expected a NumPy .npz archive without pickled objects") from error


def _load_safetensors(path: str, content: bytes) -> dict[str, Array]:
    if importlib.util.find_spec("safetensors") is None:
        raise UsageError(f"capture={path!r}: expected safetensors to be installed, it comes with the extra `report`")
    safetensors = importlib.import_module("safetensors")
    try:
        entries = safetensors.deserialize(content)
        return {
            name: np.frombuffer(entry["data"], dtype=SAFETENSORS_DTYPES[entry["dtype"]]).reshape(entry["shape"])
            for name, entry in entries
        }
    except (safetensors.SafetensorError, KeyError) as error:
        raise UsageError(
            f"capture={path!r}: expected a safetensors file of fp32, fp16, bf16 or bool tensors"
        ) from error


def _operand(path: str, name: str, array: Array) -> Array:
    if array.dtype == np.uint16:
        array = array.view(BF16.numpy_dtype)
    kind = name_of(array.dtype)
    require(kind in STORAGE_DTYPES, f"capture {path}: dtype of {name}", kind, "fp32, fp16, bf16 or uint16 bits of bf16")
    require(array.ndim == 4, f"capture {path}: shape of {name}", array.shape, "(batch, seqlen, nheads, head_dim)")
    return array


def _number(tensors: Mapping[str, Array], name: str, default: float) -> float:
    if name not in tensors:
        return default
    require(tensors[name].size == 1, f"capture:{name}", tensors[name].shape, "one number")
    return float(tensors[name].reshape(())[()])


def _check_shapes(path: str, tensors: Mapping[str, Array], p: AttentionProblem) -> None:
    expected = {
        "k": (p.batch, p.seqlen_k, p.nheads_kv, p.head_dim),
        "v": (p.batch, p.seqlen_k, p.nheads_kv, p.head_dim_v),
        "dout": (p.batch, p.seqlen_q, p.nheads, p.head_dim_v),
        "mask": (p.batch, p.nheads, p.seqlen_q, p.seqlen_k),
    }
    for name, shape in expected.items():
        if name in tensors:
            require(tensors[name].shape == shape, f"capture {path}: shape of {name}", tensors[name].shape, str(shape))
