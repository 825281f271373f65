"""What a candidate declares about itself: which problems it takes and in which arithmetic. Facts, never a tolerance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from verify.case import features
from verify.dtypes import STORAGE_DTYPES
from verify.errors import require
from verify.problem import LAYOUTS, AttentionProblem

_MASKS = ("causal", "causal_topleft", "window", "boolean", "block_sparse")
_SCORES = ("bias", "bias_minus_infinity", "alibi", "softcap", "sink", "dropout")
_SHAPES = ("gqa", "ragged", "paged", "lengths", "dv")
OPTIONAL_FEATURES = frozenset(_MASKS + _SCORES + _SHAPES)
OUTPUT_NAMES = ("out", "lse", "dq", "dk", "dv", "dbias", "dsink")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """Rounding points of one kernel at one storage dtype (docs/tolerances.md, section Contract)."""

    probs_dtype: str = "fp32"
    """Format of the un-normalised P before P V in the forward."""
    probs_normalised_dtype: str = "fp32"
    """Format in which the normalised softmax is stored (eager kernels)."""
    probs_backward_dtype: str = "fp32"
    """Format of the recomputed P before dV."""
    probs_dscores_dtype: str = "fp32"
    """Format of the recomputed P that multiplies dP - delta."""
    dscores_dtype: str = "fp32"
    """Format of dS before dQ and dK."""
    dscores_products_dtype: str = "fp32"
    """Format of P dP, of its row sum delta and of P delta where dS is the difference of these; fp32: P (dP - delta)."""
    dq_unscaled_dtype: str = "fp32"
    """Format in which dS K is kept before softmax_scale multiplies it."""
    scaled_q_in_dk: bool = False
    """dk is a product of dS with the rounded q * softmax_scale that scale_on q stores, not softmax_scale dS^T q."""
    scale_on_dscores: bool = False
    """softmax_scale multiplies dS before dS is rounded; false: it multiplies dQ and dK."""
    scores_dtype: str = "fp32"
    """Format in which S is kept."""
    dprobs_dtype: str = "fp32"
    """Format in which dP is kept."""
    out_dtype: str | None = None
    """Format of out; None = the storage dtype."""
    grad_dtype: str | None = None
    """Format of the gradients; None = the storage dtype."""
    accumulate: str = "rne"
    """fp32 accumulation: rne rounds to nearest, rtz truncates (tensor cores)."""
    accumulate_chunk: int = 1
    """Products summed exactly between two roundings of the accumulator."""
    products_exact: bool = True
    """Products of two inputs are exact in the accumulator format (false for fp32 inputs)."""
    scale_on: str = "scores"
    """Where softmax_scale enters: scores, q (q*scale rounded to the input format), q_and_k (both by its root)."""
    scale_roundings: int = 2
    """fp32 roundings in scaling the scores."""
    exp_ulp: float = 2.0
    """Error of the exponential, and of tanh, in fp32 ulp."""
    tanh_ulp: float | None = None
    """Error of tanh in fp32 ulp where it is another one; None = as of the exponential."""
    log_ulp: float = 2.0
    """Error of the logarithm in fp32 ulp."""
    exp2_fma: bool = False
    """x = fl(S*c - fl(m*c)): an extra error of u*|m| when the maximum changes."""
    tile_q: int = 0
    """Query rows a tile; 0 = all rows in one."""
    tile_k: int = 0
    """Keys a tile; 0 = all keys in one."""
    sum_rounded_probs: bool = False
    """The row sum is accumulated from the rounded P."""
    argmax_exact: bool = True
    """P is exactly 1 at the running maximum: no lazy rescale, and exp(0) = 1."""
    delta_from: str = "out"
    """delta = rowsum(dO*O) from the stored `out`, from fp32 `accumulator`, or `dprobs` = rowsum(P*dP)."""
    lse_stored: bool = True
    """The backward recomputes P from a stored fp32 lse; false: it renormalises or keeps P."""
    rounds_dq_per_tile: bool = False
    """dq is rounded to the gradient format after each key tile."""
    rounds_dkv_per_tile: bool = False
    """dk and dv of every query head of a group are rounded to the gradient format after each query tile."""
    rounds_out_per_tile: bool = False
    """out is rounded to its format after each key tile, the last one too."""
    group_sum_dtype: str = "fp32"
    """Format in which dk and dv of the query heads of a group are summed."""
    lse_dtype: str = "fp32"
    """Format in which lse is returned."""

    def __post_init__(self) -> None:
        require(self.accumulate in ("rne", "rtz"), "accumulate", self.accumulate, "rne or rtz")
        require(self.scale_on in ("scores", "q", "q_and_k"), "scale_on", self.scale_on, "scores, q or q_and_k")
        known = self.delta_from in ("out", "accumulator", "dprobs")
        require(known, "delta_from", self.delta_from, "out, accumulator or dprobs")
        differs = self.dscores_products_dtype == "fp32" or self.delta_from == "dprobs"
        require(differs, "dscores_products_dtype", self.dscores_products_dtype, "fp32 unless delta_from is dprobs")
        late = self.dq_unscaled_dtype == "fp32" or not self.scale_on_dscores
        require(late, "dq_unscaled_dtype", self.dq_unscaled_dtype, "fp32 where softmax_scale multiplies dS")
        known = not self.scaled_q_in_dk or (self.scale_on == "q" and not self.scale_on_dscores)
        require(known, "scaled_q_in_dk", self.scaled_q_in_dk, "False unless scale_on is q and dS is left unscaled")
        require(self.accumulate_chunk >= 1, "accumulate_chunk", self.accumulate_chunk, "an integer >= 1")

    @property
    def tanh_error_ulp(self) -> float:
        """`tanh_ulp`, or `exp_ulp` where that is None."""
        return self.exp_ulp if self.tanh_ulp is None else self.tanh_ulp


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Problems that a candidate takes. Declared but refused is a failure; undeclared is a skip."""

    dtypes: frozenset[str] = frozenset(STORAGE_DTYPES)
    features: frozenset[str] = frozenset({"causal"})
    """Names of verify.case.features that it supports, layouts apart."""
    required: frozenset[str] = frozenset()
    """Features without which it cannot run: {"causal"} for a kernel that always masks causally."""
    layouts: frozenset[str] = frozenset(LAYOUTS)
    max_head_dim: int = 256
    head_dim_multiple: int = 1
    backward: bool = True
    outputs: frozenset[str] = frozenset({"out", "lse", "dq", "dk", "dv"})
    """Outputs that it returns where the problem has them."""
    takes_dlse: bool = False
    """The backward accepts a gradient of lse."""
    dropout_mask: str = "given"
    """given: it applies the keep-mask of the inputs; own: it returns the mask that it drew as output dropout_keep."""
    empty: bool = True
    """It takes seqlen_q = 0 or seqlen_k = 0."""
    more_rows_than_keys: bool = True
    """It takes sequences of more query rows than keys (a KV cache holds the keys of its queries)."""
    fully_masked_rows: bool = True
    """Rows with no visible key give out = 0, lse = -inf and zero gradients."""
    nan_behind_mask: bool = False
    """In-range keys hidden by a mask may hold NaN without effect."""
    deterministic: bool = True
    """Repeated calls give the same bits."""
    split_counts: tuple[int, ...] = ()
    """Parts into which it can be told to split the range of keys (split-KV); empty = it takes no such number."""
    splits_bitwise: bool = False
    """Every number of splits gives the same bits."""

    def __post_init__(self) -> None:
        unknown = sorted(self.features - OPTIONAL_FEATURES)
        require(not unknown, "features", unknown, "names out of " + ", ".join(sorted(OPTIONAL_FEATURES)))
        unknown = sorted(self.required - self.features)
        require(not unknown, "required", unknown, "names out of features")
        unknown = sorted(self.outputs - set(OUTPUT_NAMES))
        require(not unknown, "outputs", unknown, "names out of " + ", ".join(OUTPUT_NAMES))
        require(all(n >= 1 for n in self.split_counts), "split_counts", self.split_counts, "integers >= 1")

    def splits_refusal(self, splits: int) -> str | None:
        """Why it cannot be told this number of splits, or None; 0 = as it likes."""
        return f"{splits} splits not declared" if splits and splits not in self.split_counts else None

    def refusal(self, problem: AttentionProblem) -> str | None:
        """Why the problem lies outside what is declared, or None when it is inside."""
        if problem.dtype not in self.dtypes:
            return f"dtype {problem.dtype} not declared"
        missing = [name for name in features(problem) if name in OPTIONAL_FEATURES and name not in self.features]
        if missing:
            return f"{', '.join(missing)} not declared"
        absent = sorted(self.required.difference(features(problem)))
        if absent:
            return f"{', '.join(absent)} required"
        if problem.layout not in self.layouts:
            return f"layout {problem.layout} not declared"
        return self._shape_refusal(problem)

    def _shape_refusal(self, problem: AttentionProblem) -> str | None:
        for name in ("head_dim", "head_dim_v"):
            value = getattr(problem, name)
            if value > self.max_head_dim:
                return f"{name} {value} above the declared {self.max_head_dim}"
            if value % self.head_dim_multiple:
                return f"{name} {value} not a multiple of the declared {self.head_dim_multiple}"
        if not self.empty and min(problem.seqlen_q, problem.seqlen_k) == 0:
            return "empty sequences not declared"
        lengths = (problem.lengths(sequence) for sequence in range(problem.batch))
        if not self.more_rows_than_keys and any(rows > keys for rows, keys in lengths):
            return "more query rows than keys not declared"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """Capabilities and, for each storage dtype, the arithmetic."""

    capabilities: Capabilities
    arithmetic: Mapping[str, Arithmetic] = field(default_factory=dict)
    """Storage dtype -> Arithmetic."""

    def __post_init__(self) -> None:
        missing = sorted(self.capabilities.dtypes - set(self.arithmetic))
        require(not missing, "arithmetic", sorted(self.arithmetic), f"an entry for each declared dtype, {missing} too")
