"""Records what a model hands to torch's scaled_dot_product_attention, for replay on any candidate.

`with verify.capture("dump.npz"):` around a step of training or inference; then `run --capture dump.npz`.
Changes nothing of what the model computes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from verify.capture_file import call_entry
from verify.dtypes import STORAGE_DTYPES
from verify.errors import require

Array = NDArray[Any]
_FUNCTION = "scaled_dot_product_attention"
MAX_BYTES = 256 << 20
"""Default limit: enough for some layers of a small model, far from filling a disk by accident."""


@dataclass(slots=True)
class _Recorded:
    """One call: entries by name, dout once the backward has passed."""

    entries: dict[str, Array]
    nbytes: int


@dataclass(slots=True)
class capture:  # noqa: N801 - used like a function: `with verify.capture(...)`
    """Context manager that records calls of torch.nn.functional.scaled_dot_product_attention.

    Parameters
    ----------
    path
        The .npz that is written at the end, in one piece, when the body raised nothing.
    max_bytes
        Calls that would exceed this many bytes together are left out and counted in `skipped`.
    layers
        Numbers of the calls within a step, from 0; None = all.
    steps
        Numbers of the steps, from 0; None = all. `step()` begins the next one; without it all is step 0.

    Notes
    -----
    The function is replaced in torch.nn.functional for the time of the body: a model that imported it by name before,
    or calls a backend's operator, is not seen. Calls with dropout or with a mask that adds more than 0 or a hiding
    value are skipped: a replay could not repeat them.

    Raises
    ------
    UsageError
        The path does not end in .npz, a number is out of range, or no call was recorded.
    """

    path: str | Path
    max_bytes: int = field(default=MAX_BYTES, kw_only=True)
    layers: Collection[int] | None = field(default=None, kw_only=True)
    steps: Collection[int] | None = field(default=None, kw_only=True)
    skipped: list[str] = field(default_factory=list, init=False)
    """One line for each call that was seen and not recorded, with the reason."""
    _calls: list[_Recorded] = field(default_factory=list, init=False)
    _layer: int = field(default=0, init=False)
    _step: int = field(default=0, init=False)
    _original: Callable[..., Any] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        require(str(self.path).endswith(".npz"), "path", str(self.path), "a name that ends in .npz")
        require(self.max_bytes > 0, "max_bytes", self.max_bytes, "an integer > 0")

    def step(self) -> None:
        """Begin the next step: layers count from 0 again."""
        self._step += 1
        self._layer = 0

    def __enter__(self) -> Self:
        from torch.nn import functional

        self._original = getattr(functional, _FUNCTION)
        setattr(functional, _FUNCTION, self._attention)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        from torch.nn import functional

        setattr(functional, _FUNCTION, self._original)
        if kind is None:
            seen = f"{self._layer} calls in the last of {self._step + 1} steps" + "".join(
                f"; {s}" for s in self.skipped
            )
            require(bool(self._calls), "capture", seen, "a call to record")
            _write(Path(self.path), [call.entries for call in self._calls])

    def _attention(self, query: Any, key: Any, value: Any, *rest: Any, **options: Any) -> Any:
        assert self._original is not None, "only called inside the context"
        out = self._original(query, key, value, *rest, **options)
        here, self._layer = (self._step, self._layer), self._layer + 1
        chosen = (self.steps is None or here[0] in self.steps) and (self.layers is None or here[1] in self.layers)
        if chosen:
            names = ("attn_mask", "dropout_p", "is_causal")
            given = dict(zip(names, rest, strict=False)) | options
            reason = self._record(query, key, value, given, out)
            if reason:
                self.skipped.append(f"step {here[0]} layer {here[1]}: {reason}")
        return out

    def _record(self, query: Any, key: Any, value: Any, given: dict[str, Any], out: Any) -> str:
        """Keep one call; the reason why not otherwise."""
        if query.dim() != 4:
            return f"{query.dim()} dimensions instead of 4"
        if given.get("dropout_p", 0.0) > 0:
            return "dropout"
        tensors = {"q": query, "k": key, "v": value}
        if any(_name(tensor) not in STORAGE_DTYPES for tensor in tensors.values()):
            return f"dtype {query.dtype}"
        shape = (*query.shape[:3], key.shape[2])
        keep, reason = _keep(given.get("attn_mask"), bool(given.get("is_causal", False)), shape)
        if reason:
            return reason
        grad_bytes = out.numel() * out.element_size() if out.requires_grad else 0
        nbytes = sum(t.numel() * t.element_size() for t in tensors.values()) + grad_bytes
        nbytes += 0 if keep is None else keep.nbytes
        if sum(call.nbytes for call in self._calls) + nbytes > self.max_bytes:
            return f"{nbytes} bytes more than max_bytes={self.max_bytes} leaves"
        entries = {name: _rows_first(tensor) for name, tensor in tensors.items()}
        scale = given.get("scale")
        entries["softmax_scale"] = np.array(1.0 / math.sqrt(query.shape[3]) if scale is None else scale)
        square = shape[2] == shape[3]
        entries["causal"] = np.array(bool(given.get("is_causal", False)) and square)
        if keep is not None:
            entries["mask"] = keep
        self._calls.append(_Recorded(entries, nbytes))
        if out.requires_grad:
            out.register_hook(lambda gradient: entries.__setitem__("dout", _rows_first(gradient)))
        return ""


def _keep(mask: Any, is_causal: bool, shape: tuple[int, ...]) -> tuple[NDArray[np.bool_] | None, str]:
    """(keep-mask (batch, heads, seqlen_q, seqlen_k) or None, why the mask cannot be kept)."""
    import torch

    if mask is None:
        # torch's is_causal is top-left; where that differs from bottom-right it is written down as a mask.
        if not is_causal or shape[2] == shape[3]:
            return None, ""
        return np.broadcast_to(np.tri(shape[2], shape[3], dtype=bool), shape), ""
    plain = mask.detach().cpu()
    if plain.dtype != torch.bool:
        hides = plain <= torch.finfo(plain.dtype).min / 2
        if not bool((hides | (plain == 0)).all()):
            return None, "an additive mask with other values than 0 and hiding ones"
        plain = ~hides
    return np.broadcast_to(plain.numpy(), shape), ""


def _rows_first(tensor: Any) -> Array:
    """(batch, heads, rows, dim) tensor as a (batch, rows, heads, dim) array, bf16 as its bits."""
    import torch

    plain = tensor.detach().cpu().transpose(1, 2).contiguous()
    array: Array = (plain.view(torch.uint16) if plain.dtype == torch.bfloat16 else plain).numpy()
    return array.copy()


def _name(tensor: Any) -> str:
    names = {"torch.float32": "fp32", "torch.float16": "fp16", "torch.bfloat16": "bf16"}
    return names.get(str(tensor.dtype), str(tensor.dtype))


def _write(path: Path, calls: list[dict[str, Array]]) -> None:
    partial = path.with_name(path.name + ".partial.npz")
    named: dict[str, Any] = {
        call_entry(i, len(calls), name): array for i, call in enumerate(calls) for name, array in call.items()
    }
    np.savez_compressed(partial, **named)
    partial.replace(path)
