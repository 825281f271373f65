"""What the libraries' own documents say about the deviations in the conformance table, by candidate and feature."""

from __future__ import annotations

from collections.abc import Mapping

UNDOCUMENTED = "No statement of the library was looked up."
_BLIND = "row that sees no key"
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
    ("torch_flash", "fp16"): (
        "Not documented, and not of fp16 alone: in torch 2.13, with fewer than 16 keys and any dtype, a row whose "
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
    **{("onnxruntime_gqa", feature): _GQA_NAN for feature in ("fp32", "causal", "gqa", "window")},
    ("onnxruntime_gqa", _BLIND): _GQA_BLIND,
    ("onnxruntime_gqa_fp16", _BLIND): _GQA_BLIND,
    ("onnxruntime_attention", "lengths"): (
        "The operator's text calls keys beyond `nonpad_kv_seqlen` padding and asks nothing of their values. They get "
        "weight 0 and are still multiplied: a NaN there reaches every row."
    ),
}
