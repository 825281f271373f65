"""mlx.core.fast.scaled_dot_product_attention on the CPU; the gradients come from mlx.core.vjp.

Read from mlx/fast.cpp (the CPU runs its fallback, which is differentiated operation by operation: mlx/primitives.cpp);
version 0.32 is the one that was tried.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np

from verify.candidate import Array, Call, RefusedError, Reply, Route, contiguous
from verify.candidates.masks import MASKED, heads_first_copy, keep_mask
from verify.contract import Arithmetic, Capabilities, Contract
from verify.dtypes import BF16, STORAGE_DTYPES


def _arithmetic(storage: str) -> Arithmetic:
    """The fallback: q times the scale, S, the normalised P, dP and dS each stored in the inputs' dtype; softmax in
    fp32. The scale itself is first rounded to that dtype, one more rounding of every score. Matmul::vjp stores dk and
    dv of every query head, and broadcast_vjp sums those of a group, in that dtype as well. Softmax::vjp stores P dP,
    delta and P delta, Multiply::vjp rounds dq once more, and dk is a product with the rounded q times scale.
    """
    return Arithmetic(
        scale_on="q",
        scale_roundings=2,
        scores_dtype=storage,
        probs_normalised_dtype=storage,
        probs_backward_dtype=storage,
        dprobs_dtype=storage,
        dscores_dtype=storage,
        dscores_products_dtype=storage,
        scaled_q_in_dk=True,
        dq_unscaled_dtype=storage,
        group_sum_dtype=storage,
        products_exact=storage != "fp32",
        exp_ulp=4.0,
        delta_from="dprobs",
        lse_stored=False,
    )


CONTRACT = Contract(
    capabilities=Capabilities(
        features=MASKED | {"gqa", "dv"},
        max_head_dim=512,
        outputs=frozenset({"out", "dq", "dk", "dv"}),
        # Hidden scores become the lowest finite number: a row that sees no key gets the mean of V.
        fully_masked_rows=False,
    ),
    arithmetic={storage: _arithmetic(storage) for storage in STORAGE_DTYPES},
)


class MlxAttention:
    """MLX's attention on the CPU device."""

    def __init__(self) -> None:
        self.name = "mlx_attention"
        self.contract = CONTRACT

    def unavailable(self) -> str | None:
        """Missing package, or None."""
        return None if find_spec("mlx") is not None else "mlx not installed (pip install 'mlx[cpu]')"

    def run(self, call: Call) -> Reply:
        """out and gradients of the call."""
        reason = self.contract.capabilities.refusal(call.problem)
        if reason is not None:
            raise RefusedError(reason)
        import mlx.core as mx

        mx.set_default_device(mx.cpu)
        operands = [_to_mlx(heads_first_copy(call.arrays[name])) for name in ("q", "k", "v")]
        options = {"scale": call.problem.softmax_scale, "mask": _mask(call)}

        def attention(q: Any, k: Any, v: Any) -> Any:
            return mx.fast.scaled_dot_product_attention(q, k, v, **options)

        if call.backward:
            dout = _to_mlx(heads_first_copy(call.arrays["dout"]))
            (out,), gradients = mx.vjp(attention, operands, [dout])
            results = {"out": out} | {f"d{name}": grad for name, grad in zip("qkv", gradients, strict=True)}
        else:
            results = {"out": attention(*operands)}
        outputs = {name: contiguous(_to_numpy(value).swapaxes(1, 2)) for name, value in results.items()}
        return Reply(outputs=outputs, route=Route(backend="fallback", details={"mlx": mx.__version__, "device": "cpu"}))


def _mask(call: Call) -> Any:
    """None, "causal" (bottom-right in MLX), a boolean or an additive mask in the inputs' dtype."""
    p, arrays = call.problem, call.arrays
    aligned = p.alignment == "bottom_right" or p.seqlen_q == p.seqlen_k
    only_causal = p.causal and aligned and p.window is None and not {"mask", "block_mask", "bias"} & set(arrays)
    if only_causal:
        return "causal"
    keep = keep_mask(call)
    if "bias" not in arrays:
        return None if keep is None else _to_mlx(keep)
    bias = arrays["bias"]
    return _to_mlx(bias if keep is None else np.where(keep, bias, bias.dtype.type(-np.inf)))


def _to_mlx(array: Array) -> Any:
    import mlx.core as mx

    plain = contiguous(array)
    return mx.array(plain.view(np.uint16)).view(mx.bfloat16) if plain.dtype == BF16.numpy_dtype else mx.array(plain)


def _to_numpy(value: Any) -> Array:
    import mlx.core as mx

    if value.dtype == mx.bfloat16:
        bits: Array = np.array(value.view(mx.uint16))
        return bits.view(BF16.numpy_dtype)
    array: Array = np.array(value)
    return array


def build() -> MlxAttention:
    """MLX on the CPU."""
    return MlxAttention()
