"""Attention in ball arithmetic: every result is an interval that provably holds the exact value.

Measures the error of the fp64 reference itself, on small problems (one ball costs about a microsecond). Needs
python-flint, the optional extra "certify". Operands must be finite, apart from a bias of -inf.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from references.masks import dense_keep
from references.options import NO_EXTRAS, Array, AttentionExtras, AttentionOptions
from references.shapes import Sizes, check_shapes, require_shape

try:
    import flint
except ImportError as missing:
    raise ImportError("references.certified needs python-flint: pip install 'attn-verify[certify]'") from missing

PRECISION_BITS = 128
"""Working precision. Balls of small problems then have relative radii near 2^-115, far below fp64's 2^-53."""


@dataclass(frozen=True, slots=True, eq=False)
class CertifiedArray:
    """An array of balls."""

    balls: Array
    """object array of flint.arb; an infinite lse is an exact -inf."""

    @property
    def mid(self) -> Array:
        """fp64 array: the double nearest to each midpoint."""
        return _to_double(self.balls)

    @property
    def radius(self) -> Array:
        """fp64 array: proven bound on |mid - exact|, the rounding of mid to fp64 included."""
        return self.error_of(self.mid)

    def error_of(self, array: Array) -> Array:
        """Proven upper bound on |array - exact|, element by element; inf where a non-finite value differs.

        Raises
        ------
        ValueError
            The shape differs.
        """
        require_shape("array", array, self.balls.shape)
        pairs = zip(self.balls.flat, np.asarray(array, dtype=np.float64).flat, strict=True)
        return np.array([_distance(ball, float(x)) for ball, x in pairs]).reshape(self.balls.shape)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CertifiedAttention:
    """Proven results, in the shapes of `AttentionResult` and `Gradients`. Gradients are None without dout."""

    out: CertifiedArray
    lse: CertifiedArray
    dq: CertifiedArray | None = None
    dk: CertifiedArray | None = None
    dv: CertifiedArray | None = None
    dbias: CertifiedArray | None = None
    dsink: CertifiedArray | None = None


def certified_attention(
    q: Array,
    k: Array,
    v: Array,
    dout: Array | None = None,
    *,
    options: AttentionOptions,
    extras: AttentionExtras = NO_EXTRAS,
    dlse: Array | None = None,
    precision_bits: int = PRECISION_BITS,
) -> CertifiedAttention:
    """Forward, and with `dout` also backward, in ball arithmetic; operands as in `attention_backward`.

    Notes
    -----
    No maximum is subtracted: the exponent range of a ball has no practical limit.

    References
    ----------
    Johansson, "Arb: efficient arbitrary-precision midpoint-radius interval arithmetic", 2017.
    """
    sizes = check_shapes(q, k, v, options, extras)
    if dout is not None:
        require_shape("dout", dout, (sizes.batch, sizes.seqlen_q, sizes.nheads, sizes.head_dim_v))
    if dlse is not None:
        require_shape("dlse", dlse, (sizes.batch, sizes.nheads, sizes.seqlen_q))
    with flint.ctx.workprec(precision_bits):
        run = _Run(q, k, v, dout, dlse, options, extras, sizes)
        for b in range(sizes.batch):
            keep = dense_keep(options, extras, b, sizes.lengths_q[b], sizes.lengths_k[b], sizes.nheads)
            for h in range(sizes.nheads):
                run.head(b, h, keep[h])
        return CertifiedAttention(**{name: CertifiedArray(balls) for name, balls in run.results.items()})


class _Run:
    """Results under construction, one query head at a time."""

    def __init__(
        self,
        q: Array,
        k: Array,
        v: Array,
        dout: Array | None,
        dlse: Array | None,
        options: AttentionOptions,
        extras: AttentionExtras,
        sizes: Sizes,
    ) -> None:
        self.q, self.k, self.v = (np.asarray(x, dtype=np.float64) for x in (q, k, v))
        self.dout: Array = None if dout is None else np.asarray(dout, dtype=np.float64)
        self.dlse = None if dlse is None else np.asarray(dlse, dtype=np.float64)
        self.options, self.extras, self.sizes = options, extras, sizes
        self.results = {"out": _zeros((*q.shape[:3], v.shape[3])), "lse": _zeros((q.shape[0], q.shape[2], q.shape[1]))}
        self.results["lse"][...] = flint.arb.neg_inf()
        if dout is not None:
            self.results |= {"dq": _zeros(q.shape), "dk": _zeros(k.shape), "dv": _zeros(v.shape)}
            if extras.bias is not None:
                self.results["dbias"] = _zeros(extras.bias.shape)
            if extras.sink is not None:
                self.results["dsink"] = _zeros(extras.sink.shape)
        full = (sizes.batch, sizes.nheads, sizes.seqlen_q, sizes.seqlen_k)
        if extras.bias is not None:
            self.bias = np.broadcast_to(np.asarray(extras.bias, dtype=np.float64), full)
            # Where each score's bias lies in extras.bias, for the sum over broadcast axes.
            self.bias_home = np.broadcast_to(np.arange(extras.bias.size).reshape(extras.bias.shape), full)

    def head(self, b: int, h: int, keep: Array) -> None:
        """Add one query head of one sequence; keep is bool (rows, keys)."""
        rows, keys = keep.shape
        g = h // self.sizes.group
        q, k, v = _matrix(self.q[b, :rows, h]), _matrix(self.k[b, :keys, g]), _matrix(self.v[b, :keys, g])
        scores, slopes = self._scores(b, h, _product(q, k.T) * _ball(self.options.softmax_scale), keep)
        sink = None if self.extras.sink is None else _ball(self.extras.sink[h])
        probs, sink_probs = _zeros((rows, keys)), _zeros((rows,))
        for i in range(rows):
            weights = {j: scores[i, j].exp() for j in np.flatnonzero(keep[i])}
            total = sum(weights.values(), _ball(0.0)) + (_ball(0.0) if sink is None else sink.exp())
            if not weights and sink is None:
                continue
            self.results["lse"][b, h, i] = total.log()
            sink_probs[i] = _ball(0.0) if sink is None else sink.exp() / total
            for j, weight in weights.items():
                probs[i, j] = weight / total
        factors = self._dropout(b, h, rows, keys)
        self.results["out"][b, :rows, h] = _product(probs * factors, v)
        if self.dout is not None:
            self._backward(b, h, q, k, v, probs, sink_probs, factors, slopes)

    def _backward(
        self,
        b: int,
        h: int,
        q: Array,
        k: Array,
        v: Array,
        probs: Array,
        sink_probs: Array,
        factors: Array,
        slopes: Array,
    ) -> None:
        rows, keys = probs.shape
        g = h // self.sizes.group
        dout = _matrix(self.dout[b, :rows, h])
        dlse = _zeros((rows,)) if self.dlse is None else _matrix(self.dlse[b, h, :rows])
        dprobs = _product(dout, v.T) * factors
        shift = dlse - (probs * dprobs).sum(axis=1, initial=_ball(0.0))
        dscores = probs * (dprobs + shift[:, None])
        self.results["dv"][b, :keys, g] += _product((probs * factors).T, dout)
        if "dsink" in self.results:
            self.results["dsink"][h] += (sink_probs * shift).sum(initial=_ball(0.0))
        if "dbias" in self.results:
            flat = self.results["dbias"].reshape(-1)
            for (i, j), dscore in np.ndenumerate(dscores):
                flat[self.bias_home[b, h, i, j]] += dscore
        dscores = dscores * slopes * _ball(self.options.softmax_scale)
        self.results["dq"][b, :rows, h] = _product(dscores, k)
        self.results["dk"][b, :keys, g] += _product(dscores.T, q)

    def _scores(self, b: int, h: int, raw: Array, keep: Array) -> tuple[Array, Array]:
        """Final scores where visible, and the slope of softcap."""
        slopes = _zeros(raw.shape)
        slopes[...] = _ball(1.0)
        offset = self.options.diagonal(*keep.shape)
        cap = _ball(self.options.softcap)
        for i, j in zip(*np.nonzero(keep), strict=True):
            if self.options.softcap:
                slopes[i, j] = (raw[i, j] / cap).sech() ** 2
                raw[i, j] = cap * (raw[i, j] / cap).tanh()
            if self.extras.bias is not None:
                raw[i, j] += _ball(self.bias[b, h, i, j])
            if self.extras.alibi_slopes is not None:
                slope = np.broadcast_to(self.extras.alibi_slopes, (self.sizes.batch, self.sizes.nheads))[b, h]
                raw[i, j] -= _ball(slope) * abs(int(i) + offset - int(j))
        return raw, slopes

    def _dropout(self, b: int, h: int, rows: int, keys: int) -> Array:
        factors = _zeros((rows, keys))
        kept = 1 / (1 - _ball(self.options.dropout_p))
        if self.extras.dropout_keep is None:
            factors[...] = _ball(1.0)
        else:
            factors[self.extras.dropout_keep[b, h, :rows, :keys]] = kept
        return factors


def _ball(value: Any) -> Any:
    """A double, exactly."""
    return flint.arb(float(value))


_matrix = np.frompyfunc(_ball, 1, 1)
_to_double = np.vectorize(float, otypes=[np.float64], doc="Nearest doubles of midpoints.")


def _zeros(shape: tuple[int, ...]) -> Array:
    balls = np.empty(shape, dtype=object)
    balls[...] = _ball(0.0)
    return balls


def _product(left: Array, right: Array) -> Array:
    """Matrix product of object arrays by flint's own matrices."""
    if 0 in (*left.shape, right.shape[1]):
        return _zeros((left.shape[0], right.shape[1]))
    product = flint.arb_mat(left.tolist()) * flint.arb_mat(right.tolist())
    result = np.empty((left.shape[0], right.shape[1]), dtype=object)
    result[...] = product.tolist()
    return result


def _distance(ball: Any, value: float) -> float:
    """Upper bound on |value - x| for every x of the ball, rounded up."""
    if not (ball.is_finite() and np.isfinite(value)):
        return 0.0 if float(ball) == value else np.inf
    bound = float((ball - flint.arb(value)).abs_upper())
    return bound if bound == 0 else float(np.nextafter(bound, np.inf))
