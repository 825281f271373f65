"""jax.nn.dot_product_attention, implementation `xla`, on the CPU; the gradients come from jax.vjp.

Read from jax/_src/nn/functions.py; version 0.10 is the one that was tried.
"""

from __future__ import annotations

import functools
from importlib.util import find_spec
from typing import Any

import numpy as np

from verify.candidate import Array, Call, RefusedError, Reply, Route, contiguous
from verify.candidates.masks import MASKED, keep_mask
from verify.contract import Arithmetic, Capabilities, Contract
from verify.problem import Window


def _arithmetic(storage: str) -> Arithmetic:
    """_dot_product_attention_core: S in fp32 and multiplied by the scale in fp32, softmax in fp32, P stored in the
    inputs' dtype before P V. Backward: dP has the dtype of P, dS that of q and k; the softmax is kept. The residual
    lse is converted to the inputs' dtype. XLA's exponential on the CPU is the polynomial of Eigen (2 ulp).
    """
    return Arithmetic(
        probs_normalised_dtype=storage,
        probs_backward_dtype=storage,
        dprobs_dtype=storage,
        dscores_dtype=storage,
        products_exact=storage != "fp32",
        exp_ulp=4.0,
        log_ulp=4.0,
        delta_from="dprobs",
        lse_stored=False,
        lse_dtype=storage,
    )


CONTRACT = Contract(
    capabilities=Capabilities(
        features=MASKED | {"gqa", "lengths"},
        max_head_dim=512,
        outputs=frozenset({"out", "lse", "dq", "dk", "dv"}),
        # Under jit XLA has no F16_F16_F32 dot on the CPU (jax 0.10); the library falls back only outside jit.
        dtypes=frozenset({"fp32", "bf16"}),
        # _apply_masks replaces hidden scores by a large negative number: a row that sees no key gets the mean of V.
        fully_masked_rows=False,
    ),
    arithmetic={storage: _arithmetic(storage) for storage in ("fp32", "bf16")},
)


class JaxAttention:
    """dot_product_attention under jit.

    XLA may leave out a conversion to the storage dtype and back (xla_allow_excess_precision); the contract counts it.
    """

    def __init__(self) -> None:
        self.name = "jax_attention"
        self.contract = CONTRACT

    def unavailable(self) -> str | None:
        """Missing package, or None."""
        return None if find_spec("jax") is not None else "jax not installed (pip install jax)"

    def run(self, call: Call) -> Reply:
        """out, lse and gradients of the call."""
        reason = self.contract.capabilities.refusal(call.problem)
        if reason is None and call.with_dlse:
            reason = "the gradient of lse is stopped (lax.stop_gradient)"
        if reason is not None:
            raise RefusedError(reason)
        import jax

        with jax.default_device(jax.devices("cpu")[0]):
            outputs = _outputs(call)
        details = {"jax": jax.__version__, "device": "cpu"}
        return Reply(outputs=outputs, route=Route(backend="xla", details=details))


def _outputs(call: Call) -> dict[str, Array]:
    import jax.numpy as jnp

    p, arrays = call.problem, call.arrays
    operands = [jnp.asarray(contiguous(arrays[name])) for name in ("q", "k", "v")]
    # Its is_causal and local_window_size are top-left.
    aligned = p.alignment == "top_left" or (p.seqlen_q == p.seqlen_k and p.seqlens_k is None)
    native_window = p.window if aligned and p.window is not None and None not in p.window else None
    keep = keep_mask(call, causal=not aligned, window=native_window is None)
    data: dict[str, Any] = {}
    if keep is not None:
        data["mask"] = jnp.asarray(np.broadcast_to(keep, (*keep.shape[:2], p.seqlen_q, p.seqlen_k)))
    if "bias" in arrays:
        data["bias"] = jnp.asarray(contiguous(arrays["bias"]))
    if p.seqlens_k is not None:
        data["key_value_seq_lengths"] = jnp.asarray(arrays["seqlens_k"])
    options = (p.softmax_scale, p.causal and aligned, native_window)
    gradients: Any = ()
    if call.backward:
        dout = jnp.asarray(contiguous(arrays["dout"]))
        (out, lse), gradients = _compiled(*options, backward=True)(*operands, dout, data)
    else:
        out, lse = _compiled(*options, backward=False)(*operands, data)
    named = {f"d{name}": np.array(gradient) for name, gradient in zip("qkv", gradients, strict=False)}
    return {"out": np.array(out), "lse": np.array(lse).swapaxes(1, 2)} | named


@functools.cache
def _compiled(scale: float, is_causal: bool, window: Window | None, *, backward: bool) -> Any:
    """The function under jit; jax keeps a program for each set of shapes."""
    import jax

    def attention(q: Any, k: Any, v: Any, data: dict[str, Any]) -> Any:
        return jax.nn.dot_product_attention(
            q,
            k,
            v,
            scale=scale,
            is_causal=is_causal,
            local_window_size=window,
            implementation="xla",
            return_residual=True,
            **data,
        )

    def with_gradients(q: Any, k: Any, v: Any, dout: Any, data: dict[str, Any]) -> Any:
        out, pull_back, lse = jax.vjp(lambda a, b, c: attention(a, b, c, data), q, k, v, has_aux=True)
        return (out, lse), pull_back(dout)

    return jax.jit(with_gradients if backward else attention)


def build() -> JaxAttention:
    """JAX on the CPU."""
    return JaxAttention()
