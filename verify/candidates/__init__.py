"""Adapters of attention implementations, by name. Nothing is imported until a candidate is loaded."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from verify.candidate import Candidate
from verify.candidates.user import load_user, names_user_code
from verify.errors import UsageError

IMPOSTOR_PREFIX = "impostor:"
MUTANT_PREFIX = "mutant:"

# Name -> module with `build() -> Candidate`, or `build(variant) -> Candidate` where the name takes ":variant".
_MODULES = {
    "torch_flash": "verify.candidates.torch_sdpa:build_flash",
    "torch_math": "verify.candidates.torch_sdpa:build_math",
    "torch_flex": "verify.candidates.torch_flex:build",
    "numpy_tiled": "verify.candidates.numpy_tiled:build",
    "onnxruntime_attention": "verify.candidates.onnxruntime_attention:build",
    "onnxruntime_gqa": "verify.candidates.onnxruntime_gqa:build_fp32",
    "onnxruntime_gqa_fp16": "verify.candidates.onnxruntime_gqa:build_fp16",
    "jax_attention": "verify.candidates.jax_attention:build",
    "mlx_attention": "verify.candidates.mlx_attention:build",
    "openvino_attention": "verify.candidates.openvino_attention:build",
    "triton_attention": "verify.candidates.triton_attention:build",
    "torch_flex_cuda": "verify.candidates.torch_flex:build_cuda",
    "torch_cuda_flash": "verify.candidates.torch_cuda:build_flash",
    "torch_cuda_efficient": "verify.candidates.torch_cuda:build_efficient",
    "torch_cuda_cudnn": "verify.candidates.torch_cuda:build_cudnn",
    "torch_cuda_math": "verify.candidates.torch_cuda:build_math",
    "flash_attn_2": "verify.candidates.flash_attn:build_2",
    "flash_attn_3": "verify.candidates.flash_attn:build_3",
    "flash_attn_3_forward": "verify.candidates.flash_attn:build_3_forward",
    "flash_attn_4": "verify.candidates.flash_attn:build_4",
    "xformers_attention": "verify.candidates.xformers_attention:build",
    "flashinfer_prefill": "verify.candidates.flashinfer_attention:build_fa2",
    "flashinfer_prefill_fa3": "verify.candidates.flashinfer_attention:build_fa3",
    "flashinfer_decode": "verify.candidates.flashinfer_attention:build_decode",
    "cuda_textbook": "verify.candidates.cuda:build_textbook",
    "cuda_tiled": "verify.candidates.cuda:build_tiled",
}
_WITH_VARIANTS = ("numpy_tiled", "cuda_textbook", "cuda_tiled")
_FORMS = ("numpy_tiled:VARIANT", "impostor:NAME", "file.py::function", "package.module:function", "kernel.toml")


def builtin_names() -> tuple[str, ...]:
    """Names of the honest candidates that come with the harness; variants and impostors are not listed."""
    return tuple(_MODULES)


def load(name: str) -> Candidate:
    """The candidate of that name: a builtin, `numpy_tiled:VARIANT`, `impostor:NAME`, or what a user brings
    (`file.py::function`, `package.module:function`, `kernel.toml`, an entry point of `attn_verify.candidates`).

    Raises
    ------
    UsageError
        For an unknown name; the message lists the known ones. For a user's module that fails, its traceback.
    """
    if name.startswith(IMPOSTOR_PREFIX):
        build_impostor: Callable[[str], Candidate] = import_module("verify.detection.impostors").build
        return build_impostor(name.removeprefix(IMPOSTOR_PREFIX))
    if name.startswith(MUTANT_PREFIX):
        build_mutant: Callable[[str], Candidate] = import_module("verify.detection.mutant_candidate").build
        return build_mutant(name.removeprefix(MUTANT_PREFIX))
    base, separator, variant = name.partition(":")
    if base not in _MODULES and names_user_code(name):
        return load_user(name)
    if base not in _MODULES or (separator and base not in _WITH_VARIANTS):
        known = ", ".join((*builtin_names(), *_FORMS))
        raise UsageError(f"candidate={name!r}: expected one of {known}")
    module, _, function = _MODULES[base].partition(":")
    build: Callable[..., Candidate] = getattr(import_module(module), function)
    return build(variant) if separator else build()
