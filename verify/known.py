"""Deviations of public libraries that were traced by hand: a finding that matches one carries its reason.

They stay findings. An entry whose example no longer fails is stale, and tests/verify/test_known.py says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from verify.dtypes import float_format
from verify.problem import AttentionProblem
from verify.verdict import Finding, Status

Statuses = Mapping[str, Status | tuple[Status, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownDeviation:
    """One traced deviation of one candidate."""

    candidate: str
    findings: Statuses
    """Check -> status of its finding, or the statuses that it may have; another one there is another fault."""
    example: str
    """Case id that shows it in each of the checks."""
    applies: Callable[[AttentionProblem], bool]
    """Problems that it reaches."""
    reason: str
    """What the library does, from which version on seen, and where it is written up."""

    def statuses(self, check: str) -> tuple[Status, ...]:
        """Statuses of that check's finding; none where the check does not see the deviation."""
        known = self.findings.get(check, ())
        return (known,) if isinstance(known, Status) else known


_NAN_IN_PADDING: Statuses = {
    "forward": Status.NONFINITE,
    "poison": Status.OUT_OF_BOUNDS,
    "special_values": Status.NONFINITE,
    "sequence": Status.NONFINITE,
    "sensitivity": Status.NONFINITE,
    "metamorphic": (Status.NUMERICAL, Status.NONFINITE),
    "probes": (Status.NUMERICAL, Status.NONFINITE),
}


def _reaches_out_of_padding(
    candidate: str, findings: Statuses, low_precision: str, reason: str
) -> tuple[KnownDeviation, KnownDeviation]:
    """A NaN beyond the used length of k and v, seen by the checks of `findings` and, in low precision, by aggregate."""
    by_checks = KnownDeviation(
        candidate=candidate,
        findings=findings,
        example="attn1:b=2,sq=1,sk=3,h=1,d=8,dtype=fp32,lenk=2+3,seed=1",
        applies=lambda problem: problem.seqlens_k is not None,
        reason=reason,
    )
    return by_checks, replace(by_checks, findings={"aggregate": Status.NUMERICAL}, example=low_precision)


def _rounded_scale(problem: AttentionProblem) -> bool:
    """Whether fp16 or bf16 inputs meet a scale that is no number of their format."""
    rounded = float(float_format(problem.dtype).numpy_dtype.type(problem.softmax_scale))
    return problem.dtype != "fp32" and rounded != problem.softmax_scale


_NAN_ROWS = {"special_values": Status.NONFINITE}


def _odd_sixteens(problem: AttentionProblem) -> bool:
    """Whether flash-attn-4 on Hopper pads the gradients in a workspace and reads them back at another stride."""
    sixteens = -(-problem.head_dim // 16)
    beyond_a_tile = problem.seqlen_q > 64 or (problem.group > 1 and problem.seqlen_k > 64)
    return sixteens % 2 == 1 and problem.head_dim <= 128 and beyond_a_tile


_ON_A_GPU = (
    *(
        KnownDeviation(
            candidate=name,
            findings=_NAN_ROWS,
            example="attn1:b=1,sq=33,sk=65,h=2,d=80,dtype=bf16,recipe=v_mean:mean=100.0,seed=12",
            applies=lambda problem: True,
            reason=(
                "known: FlashAttention takes a row whose sum is NaN for one without keys: lse is infinite and dV "
                "forgets the NaN (docs/findings.md)"
            ),
        )
        for name in ("torch_cuda_flash", "flash_attn_2", "flash_attn_3", "flash_attn_3_forward", "flash_attn_4")
    ),
    KnownDeviation(
        candidate="torch_flex_cuda",
        findings=_NAN_ROWS,
        example="attn1:b=1,sq=33,sk=65,h=2,d=80,dtype=bf16,recipe=v_mean:mean=100.0,seed=12",
        applies=lambda problem: problem.seqlen_q < 128,
        reason=(
            "known: PyTorch 2.11 flex_decoding takes a row of NaN for one without keys: lse is -inf (docs/findings.md)"
        ),
    ),
    KnownDeviation(
        candidate="torch_cuda_cudnn",
        findings=_NAN_ROWS,
        example="attn1:b=2,sq=2,sk=3,h=1,d=64,dtype=fp16,recipe=normal,seed=32",
        applies=lambda problem: True,
        reason=(
            "known: cuDNN 9.19 keeps gradients finite where an infinity of V makes delta infinite (docs/findings.md)"
        ),
    ),
    KnownDeviation(
        candidate="torch_cuda_cudnn",
        findings=dict.fromkeys(("contract", "forward", "backward", "special_values"), Status.REFUSED),
        example="attn1:b=2,sq=1,sk=1,h=1,d=64,dtype=fp16,recipe=normal,seed=31",
        applies=lambda problem: problem.seqlen_k == 1,
        reason="known: torch gives cuDNN no problem with a single key (sdp_utils.cpp, check_cudnn_tensor_shapes)",
    ),
    KnownDeviation(
        candidate="flash_attn_4",
        findings=dict.fromkeys(("backward", "special_values", "aggregate"), Status.NUMERICAL),
        example="attn1:b=1,sq=65,sk=33,h=1,d=80,dtype=bf16,recipe=identical_queries,seed=20",
        applies=_odd_sixteens,
        reason=(
            "known: flash-attn-4 4.0.0b36 on Hopper reads dq (dk and dv of groups too) at another stride than it wrote "
            "them, where head_dim rounds up to an odd multiple of 16 (docs/findings.md; pull request 2896 of "
            "Dao-AILab/flash-attention)"
        ),
    ),
)

KNOWN = (
    *_ON_A_GPU,
    *(
        KnownDeviation(
            candidate=name,
            findings={"forward": Status.NONFINITE},
            example="attn1:b=1,sq=105,sk=0,h=2,d=61,dtype=fp16,recipe=low_logits:unscaled=60000.0,seed=129",
            applies=lambda problem: problem.dtype == "fp16" and problem.seqlen_k == 0,
            reason=(
                "known: PyTorch 2.13 computes the zeros of empty keys as sum(q) * 0, and sum(q) overflows fp16 "
                "(docs/findings.md)"
            ),
        )
        for name in ("torch_math", "torch_flash")
    ),
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
    *_reaches_out_of_padding(
        "onnxruntime_attention",
        _NAN_IN_PADDING,
        "attn1:b=2,sq=8,sk=8,h=1,d=64,dtype=fp16,lenk=1+8,recipe=normal,seed=0",
        "known: ONNX Runtime 1.32 multiplies v beyond nonpad_kv_seqlen by a weight of 0: a NaN in the padding "
        "reaches out (docs/findings.md)",
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
    *_reaches_out_of_padding(
        "jax_attention",
        {**_NAN_IN_PADDING, "backward": Status.NONFINITE},
        "attn1:b=1,sq=11,sk=11,h=1,d=95,dtype=bf16,lenk=3,recipe=logits:max=10.0,seed=303001034",
        "known: JAX 0.10 multiplies v beyond key_value_seq_lengths by a weight of 0: a NaN in the padding "
        "reaches out and the gradients (docs/findings.md)",
    ),
    *(
        KnownDeviation(
            candidate="mlx_attention",
            findings={"aggregate": Status.NUMERICAL},
            example=example,
            applies=_rounded_scale,
            reason=(
                "known: MLX 0.32 rounds the softmax scale to the dtype of the inputs, so that all scores are off by "
                "one factor, up to 0.4 % in bf16 and 0.05 % in fp16 (docs/findings.md)"
            ),
        )
        for example in (
            "attn1:b=1,sq=129,sk=129,h=4,d=72,dtype=bf16,recipe=normal,seed=1",
            "attn1:b=2,sq=129,sk=65,h=4,d=40,dtype=fp16,recipe=normal,seed=0",
        )
    ),
)


def known_reason(candidate: str, problem: AttentionProblem, finding: Finding) -> str | None:
    """The traced reason of a failing finding, or None when it is new."""
    if not finding.status.is_failure:
        return None
    for entry in KNOWN:
        same = entry.candidate == candidate and finding.status in entry.statuses(finding.check)
        if same and entry.applies(problem):
            return entry.reason
    return None
