"""How one emulated kernel computes at one storage dtype: its declared arithmetic and what the contract leaves open.

Only settings and their checks; no array passes through here.
"""

from __future__ import annotations

from dataclasses import dataclass

from verify.contract import Arithmetic
from verify.dtypes import float_format
from verify.errors import require

SUMMATIONS = ("blas", "sequential")
KEY_ORDERS = ("forward", "reverse")
EXPONENTIALS = ("rounded", "cubic")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """One way to run the tiled recurrence."""

    storage: str
    """Storage dtype of q, k, v and dout."""
    arithmetic: Arithmetic
    summation: str = "blas"
    """Order of fp32 sums with accumulate=rne: blas (the library's own) or sequential (one product after the other)."""
    key_order: str = "forward"
    """Order in which the key tiles are visited."""
    exponential: str = "rounded"
    """rounded: the fp64 result rounded once to fp32; cubic: range reduction and a polynomial of degree 3."""
    rescale_threshold: float = 0.0
    """The running maximum moves only when it grows by more than this, in units of log2; 0 = always."""

    def __post_init__(self) -> None:
        a = self.arithmetic
        require(self.summation in SUMMATIONS, "summation", self.summation, "one of " + ", ".join(SUMMATIONS))
        require(self.key_order in KEY_ORDERS, "key_order", self.key_order, "one of " + ", ".join(KEY_ORDERS))
        known = self.exponential in EXPONENTIALS
        require(known, "exponential", self.exponential, "one of " + ", ".join(EXPONENTIALS))
        whole_row = a.tile_k == 0 or a.probs_normalised_dtype == "fp32"
        require(whole_row, "tile_k", a.tile_k, "0 where the normalised probabilities are stored")
        lazy = self.rescale_threshold > 0 or self.exponential == "cubic"
        require(not (lazy and a.argmax_exact), "argmax_exact", a.argmax_exact, "False with a lazy or inexact maximum")
        backward = ("probs_backward", "probs_dscores", "dprobs", "dscores_products", "dscores", "dq_unscaled")
        for name in ("scores", "probs", *backward):
            float_format(getattr(a, f"{name}_dtype"))

    @property
    def out_format(self) -> str:
        """Format of `out`."""
        return self.arithmetic.out_dtype or self.storage

    @property
    def grad_format(self) -> str:
        """Format of the gradients."""
        return self.arithmetic.grad_dtype or self.storage

    def row_tiles(self, rows: int) -> list[slice]:
        """Query tiles in the order of the loop."""
        return _tiles(rows, self.arithmetic.tile_q)

    def key_tiles(self, keys: int) -> list[slice]:
        """Key tiles in the order of the loop."""
        tiles = _tiles(keys, self.arithmetic.tile_k)
        return tiles[::-1] if self.key_order == "reverse" else tiles


def _tiles(length: int, size: int) -> list[slice]:
    step = size or max(length, 1)
    return [slice(start, min(start + step, length)) for start in range(0, length, step)]
