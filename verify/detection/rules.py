"""The accept rules of other suites, as pure functions, to be run beside the derived bounds on the same outputs.

They are measured here and decide nothing. Each says which outputs it looks at: what a suite never compares, its rule
cannot reject.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verify.compare import FIXED_GRADIENT_LIMIT, FIXED_LIMITS
from verify.dtypes import float_format

Outputs = Mapping[str, NDArray[Any]]
Limits = Mapping[str, tuple[float, float]]

MAIN = ("out", "dq", "dk", "dv")
ALL = ("out", "lse", "dq", "dk", "dv", "dbias", "dsink")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One answer of a candidate, with all that any rule needs."""

    got: Outputs
    expected: Outputs
    """fp64 reference."""
    baseline: Outputs
    """An unfused attention in the storage dtype, as PyTorch would compute it."""
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptRule:
    """One rule of another suite."""

    name: str
    source: str
    accepts: Callable[[Question], bool]


def within(got: NDArray[Any], expected: NDArray[Any], absolute: float, relative: float) -> bool:
    """|got - expected| <= absolute + relative |expected| everywhere; equal infinities pass, NaN never does."""
    a, b = got.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):
        close = np.abs(a - b) <= absolute + relative * np.abs(b)
    return a.shape == b.shape and bool((close | (a == b)).all())


def _by_limits(forward: Limits, backward: Limits, names: tuple[str, ...]) -> Callable[[Question], bool]:
    """Absolute and relative limits for each dtype, others for the gradients. lse is fp32 whatever the storage."""

    def accepts(q: Question) -> bool:
        for name in names:
            if name not in q.got or name not in q.expected:
                continue
            limits = backward if name.startswith("d") else forward
            absolute, relative = limits["fp32" if name in ("lse", "dsink") else q.dtype]
            if not within(q.got[name], q.expected[name], absolute, relative):
                return False
        return True

    return accepts


def _flash_attention(q: Question) -> bool:
    """max|got - ref| <= 2 max|baseline - ref| + 2 max|((ref + 0.3) - 0.3) - ref|, the last one in the storage dtype."""
    form = float_format(q.dtype).numpy_dtype
    for name in MAIN:
        if name not in q.got or not q.got[name].size:
            continue
        expected = q.expected[name].astype(np.float64)
        stored = expected.astype(form)
        rounding = _largest(((stored + form.type(0.3)) - form.type(0.3)).astype(np.float64), stored.astype(np.float64))
        allowed = 2 * _largest(q.baseline[name], expected) + 2 * rounding
        if not _largest(q.got[name], expected) <= allowed:
            return False
    return True


def _cosine(q: Question) -> bool:
    """Cosine over the whole tensor above 0.999; a tensor of zeros has to be zeros."""
    for name in MAIN:
        if name not in q.got:
            continue
        a, b = q.got[name].astype(np.float64).ravel(), q.expected[name].ravel()
        norms = float(np.linalg.norm(a) * np.linalg.norm(b))
        if norms == 0.0 and (a == b).all():
            continue
        if not (norms > 0.0 and float(a @ b) / norms > 0.999):
            return False
    return True


def _largest(got: NDArray[Any], expected: NDArray[Any]) -> float:
    return float(np.abs(got.astype(np.float64) - expected).max(initial=0.0))


_CUSTOMARY_BACKWARD: Limits = {**FIXED_LIMITS, "fp32": (FIXED_GRADIENT_LIMIT, 0.0)}
_ASSERT_CLOSE: Limits = {"fp32": (1e-5, 1.3e-6), "fp16": (1e-5, 1e-3), "bf16": (1e-5, 1.6e-2)}
_XFORMERS: Limits = {"fp32": (3e-4, 2e-5), "fp16": (4e-3, 4e-4), "bf16": (2e-2, 5e-3)}
_XFORMERS_BACKWARD: Limits = {"fp32": (5e-4, 1e-4), "fp16": (9.5e-2, 2e-2), "bf16": (0.7, 0.1)}
_TRITON: Limits = dict.fromkeys(("fp32", "fp16", "bf16"), (0.01, 0.0))

RULES: tuple[AcceptRule, ...] = (
    AcceptRule(
        name="fixed limits",
        source="customary: fp32 1e-5 (gradients 1e-4), fp16 1e-3 + 1e-2 |ref|, bf16 1e-2 + 2e-2 |ref|; every output",
        accepts=_by_limits(FIXED_LIMITS, _CUSTOMARY_BACKWARD, ALL),
    ),
    AcceptRule(
        name="assert_close",
        source="defaults of torch.testing.assert_close; every output",
        accepts=_by_limits(_ASSERT_CLOSE, _ASSERT_CLOSE, ALL),
    ),
    AcceptRule(
        name="FlashAttention 2x",
        source="tests of FlashAttention: twice the largest error of an unfused run; out, dq, dk, dv",
        accepts=_flash_attention,
    ),
    AcceptRule(
        name="xformers",
        source="ERROR_ATOL and ERROR_RTOL of xformers (forward base class, cutlass backward); out, dq, dk, dv",
        accepts=_by_limits(_XFORMERS, _XFORMERS_BACKWARD, MAIN),
    ),
    AcceptRule(
        name="Triton tutorial",
        source="atol 1e-2, rtol 0 of the fused-attention tutorial; out, dq, dk, dv",
        accepts=_by_limits(_TRITON, _TRITON, MAIN),
    ),
    AcceptRule(name="cosine > 0.999", source="one cosine a tensor; out, dq, dk, dv", accepts=_cosine),
)
