"""What the libraries' own documents say about the deviations in the conformance table, by candidate and feature."""

from __future__ import annotations

from collections.abc import Mapping

UNDOCUMENTED = "No statement of the library was looked up."
_BLIND = "row that sees no key"
_SPECIAL = "NaN and infinities"
_FLASH_NAN = (
    "Not documented: a row whose sum is NaN counts as one that sees no key, so lse is infinite and the backward "
    "forgets the NaN (`softmax.h`, normalize_softmax_lse, and what descends from it). out itself is NaN."
)
_FLASH_4_DQ = (
    "Not documented: on Hopper dq (dk and dv of grouped heads too) is wrong from row 64 on where head_dim rounds up to "
    "an odd multiple of 16, such as 72 and 80; the project's open pull request 2896 makes the same correction."
)
_FLASHINFER_LOW = (
    "Not documented, and not of bf16 alone: scores below -50000 before the scale count as masked (`math.cuh` defines "
    "infinity as 5e4)."
)
_FLASHINFER_BLIND = "Not documented: out is 0 and lse -5e4 * ln 2, for the same finite infinity."
_GQA_NAN = (
    "Not documented: on the flash path (fp32, no sink, no softcap) a row whose scores are NaN, and -inf where "
    "causality hides a key, counts as one that sees no key, and out is 0. With ORT_GQA_DISABLE_FLASH_ATTENTION=1 it "
    "is NaN."
)
_GQA_BLIND = (
    "Not documented: more query rows than keys leave nothing for the cache, and a row that a bias of -inf hides "
    "completely is 0 on the flash path (fp32, no sink, no softcap), NaN on the other."
)

NOTES: Mapping[tuple[str, str], str] = {
    ("torch_flash", _SPECIAL): (
        "Not documented: in torch 2.13, with fewer than 16 keys and any dtype, a row whose "
        "scores are all NaN counts as one that sees no key, and out is 0 where the math backend gives NaN. With 16 "
        "keys and more that was a fault of torch 2.5 (pytorch/pytorch issue 141128)."
    ),
    ("jax_attention", _BLIND): (
        "Not documented. Hidden scores become a large negative number instead of -inf (`_apply_masks`), so that such a "
        "row gets the mean of V and a finite lse, and its gradients reach V."
    ),
    ("jax_attention", "lengths"): (
        "Not documented. Keys beyond `key_value_seq_lengths` get weight 0 and are still multiplied: a NaN there "
        "reaches every row."
    ),
    ("mlx_attention", _BLIND): (
        "Not documented. Hidden scores become the lowest finite number, so that such a row gets the mean of V."
    ),
    ("mlx_attention", "bf16"): (
        "Not documented. The scale is rounded to bf16 before it multiplies q: where 1/sqrt(head_dim) is no bf16 "
        "number, all scores are off by the same factor, up to 0.4 %."
    ),
    ("openvino_attention", _BLIND): (
        "Documented: in the pseudo-code of the specification (ScaledDotProductAttention-13) such a row is a softmax of "
        "-inf alone, which is NaN."
    ),
    ("onnxruntime_gqa", _SPECIAL): _GQA_NAN,
    ("onnxruntime_gqa", _BLIND): _GQA_BLIND,
    ("onnxruntime_gqa_fp16", _BLIND): _GQA_BLIND,
    ("onnxruntime_attention", "lengths"): (
        "The operator's text calls keys beyond `nonpad_kv_seqlen` padding and asks nothing of their values. They get "
        "weight 0 and are still multiplied: a NaN there reaches every row."
    ),
    **{
        (name, _SPECIAL): _FLASH_NAN
        for name in ("torch_cuda_flash", "flash_attn_2", "flash_attn_3", "flash_attn_3_forward", "flash_attn_4")
    },
    ("torch_flex_cuda", _SPECIAL): (
        "Not documented: in the decoding kernel a row whose maximum is -inf counts as one that sees no key, and the "
        "maximum of NaN scores is -inf; out is NaN, lse -inf."
    ),
    ("torch_cuda_cudnn", _SPECIAL): (
        "Not documented; closed source. Gradients stay finite where an infinity of V makes delta infinite."
    ),
    ("torch_cuda_cudnn", "plain"): (
        "torch itself gives cuDNN no problem with a single key (`sdp_utils.cpp`, check_cudnn_tensor_shapes)."
    ),
    **{("flash_attn_4", feature): _FLASH_4_DQ for feature in ("fp16", "bf16", "causal", "plain")},
    **{(name, "bf16"): _FLASHINFER_LOW for name in ("flashinfer_prefill", "flashinfer_prefill_fa3")},
    **{
        (name, _BLIND): _FLASHINFER_BLIND
        for name in ("flashinfer_prefill", "flashinfer_prefill_fa3", "flashinfer_decode")
    },
    ("torch_cuda_cudnn", _BLIND): "Not documented. Such a row gets finite values of the library's own choice.",
}
