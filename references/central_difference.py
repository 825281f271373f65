"""Directional derivatives by central differences: a last check on gradients that uses the forward as a black box.

States when it cannot answer. Slower and less exact than `complex_step.py`, but it also serves a forward that takes no
complex numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from references.attention import attention
from references.options import NO_EXTRAS, Array, AttentionExtras, AttentionOptions
from references.shapes import require_shape

Status = Literal["converged", "noise_limited", "inconclusive"]

LADDER = tuple(2.0**-exponent for exponent in range(3, 15))
"""Steps tried, for a direction of unit RMS: powers of two, so that dividing by them is exact. The best for
Richardson in fp64 on standard normal operands is near 2^-10; the ladder reaches far to both sides."""

NOISE_POINTS = 9
NOISE_SPACING = 2.0**-30
"""Spacing of the noise samples: from the third difference on, fp64 rounding outweighs the smooth variation."""

RATIO = 4.0
RATIO_TOLERANCE = 0.5
"""(D(h) - D(h/2)) / (D(h/2) - D(h/4)) tends to 4 where truncation h^2 rules; noise moves it away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A derivative by differences and how far it can be trusted."""

    status: Status
    """converged: the ratio proves the truncation regime. noise_limited: noise hides the truncation, so `error` alone
    says what the value is worth. inconclusive: neither; value must not be used."""
    value: float
    error: float
    """Estimate of |value - derivative|: the change of the last Richardson step plus amplified noise."""
    step: float
    """Larger of the two steps combined."""
    ratio: float
    """Truncation ratio observed; NaN if noise hides it."""
    noise: float
    """Estimated standard deviation of one evaluation."""


def central_difference(
    q: Array,
    k: Array,
    v: Array,
    dout: Array,
    direction: Mapping[str, Array],
    *,
    options: AttentionOptions,
    extras: AttentionExtras = NO_EXTRAS,
    dlse: Array | None = None,
) -> Difference:
    """Derivative of <dout, out> + <dlse, lse> along `direction` from values of the fp64 forward.

    Parameters
    ----------
    q, k, v, dout, options, extras, dlse : as in `attention_backward`
    direction : mapping of "q", "k", "v", "bias", "sink" to float arrays in the shapes of their operands
        Operands of magnitude 1 and directions of RMS 1 suit the steps tried.

    Raises
    ------
    ValueError
        A direction names no operand or has another shape.
    """
    operands = {"q": q, "k": k, "v": v, "bias": extras.bias, "sink": extras.sink}
    base = {name: np.asarray(x, dtype=np.float64) for name, x in operands.items() if x is not None}
    for name, change in direction.items():
        if name not in base:
            raise ValueError(f"direction: {name!r}, expected names among {list(base)}")
        require_shape(f"direction[{name!r}]", change, base[name].shape)
    anchor = _forward(base, options, extras)

    def objective(t: float) -> float:
        moved = {name: x + t * direction[name] if name in direction else x for name, x in base.items()}
        result = _forward(moved, options, extras)
        # Differences are formed element by element: the sum then carries no common part to cancel.
        total = float(np.sum(dout * (result[0] - anchor[0])))
        if dlse is not None:
            seen = np.isfinite(anchor[1])
            total += float(np.sum(dlse[seen] * (result[1][seen] - anchor[1][seen])))
        return total

    return richardson_difference(objective)


def richardson_difference(objective: Callable[[float], float]) -> Difference:
    """Derivative at 0 of a function of one number.

    Notes
    -----
    D(h) = (f(h) - f(-h)) / 2h;  R(h) = (4 D(h/2) - D(h)) / 3 removes the h^2 term. Along a ladder of halved steps the
    error of R(h/2) is estimated by |R(h/2) - R(h)| plus the noise that R(h/2) amplifies; the smallest wins.

    References
    ----------
    More and Wild, "Estimating derivatives of noisy simulations", 2012 (noise against truncation).
    """
    noise = evaluation_noise(objective)
    slopes = [(objective(h) - objective(-h)) / (2 * h) for h in LADDER]
    best: Difference | None = None
    for index in range(2, len(LADDER)):
        wide, middle, narrow = slopes[index - 2 : index + 1]
        h = LADDER[index - 1]
        # D(h) carries noise/(h sqrt 2) and D(h/2) twice that: together at most 3 noise/h in R.
        amplified = 3 * noise / h
        value = (4 * narrow - middle) / 3
        error = abs(value - (4 * middle - wide) / 3) + amplified
        ratio = (wide - middle) / (middle - narrow) if middle != narrow else math.nan
        found = Difference(
            status=_judge(ratio, wide - middle, amplified), value=value, error=error, step=h, ratio=ratio, noise=noise
        )
        if best is None or (found.status == "inconclusive", error) < (best.status == "inconclusive", best.error):
            best = found
    if best is None:
        raise AssertionError("the ladder holds fewer than three steps")
    return best


def evaluation_noise(objective: Callable[[float], float]) -> float:
    """Standard deviation of the rounding noise in one evaluation, from a difference table around 0.

    Notes
    -----
    sigma_k^2 = (k!)^2 / (2k)! * mean((Delta^k f)^2). The smooth part fades with k; the largest of the three
    highest orders is returned, on the safe side by the factor of about 4 that the estimate is good to.

    References
    ----------
    More and Wild, "Estimating computational noise", 2011, equation 2.4.
    """
    table = np.array([objective((i - NOISE_POINTS // 2) * NOISE_SPACING) for i in range(NOISE_POINTS)])
    sigmas = []
    for order in range(1, NOISE_POINTS - 2):
        table = np.diff(table)
        gamma = math.factorial(order) ** 2 / math.factorial(2 * order)
        sigmas.append(math.sqrt(gamma * float(np.mean(table**2))))
    return max(sigmas[-3:])


def _judge(ratio: float, change: float, amplified: float) -> Status:
    if abs(change) <= amplified:
        return "noise_limited"
    return "converged" if abs(ratio - RATIO) <= RATIO_TOLERANCE else "inconclusive"


def _forward(operands: Mapping[str, Array], options: AttentionOptions, extras: AttentionExtras) -> tuple[Array, Array]:
    moved = replace(extras, bias=operands.get("bias"), sink=operands.get("sink"))
    result = attention(operands["q"], operands["k"], operands["v"], options=options, extras=moved)
    return result.out, result.lse
