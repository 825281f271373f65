"""Deviations of public libraries that were traced by hand: a finding that matches one carries its reason.

They stay findings. An entry whose example no longer fails is stale, and tests/verify/test_known.py says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from verify.dtypes import BF16
from verify.problem import AttentionProblem
from verify.verdict import Finding, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownDeviation:
    """One traced deviation of one candidate."""

    candidate: str
    findings: Mapping[str, Status]
    """Check -> status of its finding; another status there is another fault."""
    example: str
    """Case id that shows it in each of the checks."""
    applies: Callable[[AttentionProblem], bool]
    """Problems that it reaches."""
    reason: str
    """What the library does, from which version on seen, and where it is written up."""


_NAN_IN_PADDING = {
    "forward": Status.NONFINITE,
    "poison": Status.OUT_OF_BOUNDS,
    "special_values": Status.NONFINITE,
}


def _rounded_scale(problem: AttentionProblem) -> bool:
    """Whether bf16 inputs meet a scale that is no bf16 number."""
    return problem.dtype == "bf16" and float(BF16.numpy_dtype.type(problem.softmax_scale)) != problem.softmax_scale


KNOWN = (
    KnownDeviation(
        candidate="torch_flash",
        findings={"special_values": Status.NONFINITE},
        example="attn1:b=2,sq=1,sk=1,h=1,d=64,dtype=fp16,recipe=normal,seed=31",
        applies=lambda problem: problem.seqlen_k < 16,
        reason=(
            "known: PyTorch 2.13 CPU flash returns 0 for a row whose scores are all NaN when there are fewer keys "
            "than vector lanes (docs/findings.md)"
        ),
    ),
    KnownDeviation(
        candidate="onnxruntime_attention",
        findings=_NAN_IN_PADDING,
        example="attn1:b=2,sq=1,sk=3,h=1,d=8,dtype=fp32,lenk=2+3,seed=1",
        applies=lambda problem: problem.seqlens_k is not None,
        reason=(
            "known: ONNX Runtime 1.32 multiplies v beyond nonpad_kv_seqlen by a weight of 0: a NaN in the padding "
            "reaches out (docs/findings.md)"
        ),
    ),
    KnownDeviation(
        candidate="onnxruntime_gqa",
        findings={"special_values": Status.NONFINITE},
        example="attn1:b=1,sq=5,sk=5,h=1,d=8,dtype=fp32,causal=1,seed=1",
        applies=lambda problem: problem.seqlen_q > 1 and not problem.sink and not problem.softcap,
        reason=(
            "known: ONNX Runtime 1.32 GroupQueryAttention on its flash path (fp32, no sink, no softcap) returns 0 for "
            "a row whose scores are all NaN; right with ORT_GQA_DISABLE_FLASH_ATTENTION=1 (docs/findings.md)"
        ),
    ),
    KnownDeviation(
        candidate="jax_attention",
        findings=_NAN_IN_PADDING | {"backward": Status.NONFINITE},
        example="attn1:b=2,sq=1,sk=3,h=1,d=8,dtype=fp32,lenk=2+3,seed=1",
        applies=lambda problem: problem.seqlens_k is not None,
        reason=(
            "known: JAX 0.10 multiplies v beyond key_value_seq_lengths by a weight of 0: a NaN in the padding reaches "
            "out and the gradients (docs/findings.md)"
        ),
    ),
    KnownDeviation(
        candidate="mlx_attention",
        findings={"aggregate": Status.NUMERICAL},
        example="attn1:b=1,sq=33,sk=65,h=2,d=72,dtype=bf16,recipe=logits:max=1.0,seed=10",
        applies=_rounded_scale,
        reason=(
            "known: MLX 0.32 rounds the softmax scale to bf16, so that all scores are off by one factor, up to 0.4 % "
            "(docs/findings.md)"
        ),
    ),
)


def known_reason(candidate: str, problem: AttentionProblem, finding: Finding) -> str | None:
    """The traced reason of a failing finding, or None when it is new."""
    if not finding.status.is_failure:
        return None
    for entry in KNOWN:
        same = entry.candidate == candidate and entry.findings.get(finding.check) is finding.status
        if same and entry.applies(problem):
            return entry.reason
    return None
