"""The bound of one output as a sum of named terms, and how the terms become one number per element.

Knows nothing of attention: `forward_terms` and `backward_terms` fill the terms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from verify.dense import Float64
from verify.dtypes import FloatFormat
from verify.tolerance.sums import NamedTerms, TermSums


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bound:
    """Largest accepted |got - reference| of every element of one output; all arrays fp64 in its logical shape.

    total = min(sum of hard terms + confidence * sqrt(sum of variances), worst_case) + output_half_ulp
    """

    tensor: str
    total: Float64
    """0 where the output must be exact (no visible key, outside every sequence); inf where it is not checkable, because
    an intermediate result may overflow its declared format: any value, NaN too, is then within the contract."""
    hard: Mapping[str, Float64]
    """Terms that hold for fully correlated errors; they add."""
    variances: Mapping[str, Float64]
    """Variances of independent errors; they add, and their root counts `confidence` times."""
    confidence: float
    output_half_ulp: Float64
    """Rounding to the output format at the largest accepted magnitude; never multiplied by the confidence."""
    worst_case: Float64
    """Bound that needs no independence, without the output rounding."""
    reference: Float64
    form: FloatFormat
    """Format of the output."""

    @property
    def overflow_ok(self) -> NDArray[np.bool_]:
        """|reference| + total reaches the rounding threshold to infinity, so an infinity of that sign is legal."""
        return self.form.may_overflow(self.reference, self.total)

    @property
    def deviations(self) -> Mapping[str, Float64]:
        """Standard deviations, the roots of `variances`."""
        return {name: np.sqrt(value) for name, value in self.variances.items()}

    @property
    def terms(self) -> Mapping[str, Float64]:
        """Hard terms and deviations by name; a deviation's name ends in "(deviation)"."""
        return {**self.hard, **{f"{name} (deviation)": value for name, value in self.deviations.items()}}

    @property
    def sigma(self) -> Float64:
        """Standard deviation of the error before the output rounding."""
        total = np.zeros(self.total.shape)
        for value in self.variances.values():
            total += value
        return np.sqrt(total)


def assemble(tensor: str, reference: Float64, sums: TermSums, form: FloatFormat, confidence: float) -> Bound:
    """Combine the terms of one output.

    Parameters
    ----------
    reference : fp64, logical shape
        Non-finite elements get the bound of a zero; their maps are compared exactly before any bound is used.
    form : FloatFormat
        Format of the output.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        likely = confidence * np.sqrt(sums.variance)
        likely += sums.hard
        worst = sums.worst
        before = np.minimum(likely, worst)
        magnitude = np.abs(reference)
        reached = magnitude + before
        if not np.isfinite(reached.sum() + worst.sum()):
            before = np.fmin(np.where(np.isnan(likely), np.inf, likely), worst)
            before[np.isinf(worst) | np.isnan(worst)] = np.inf
            reached = np.where(np.isfinite(magnitude), magnitude, 0.0) + before
            reached[~np.isfinite(reached)] = 0.0
        rounding = form.half_ulp(reached)
        rounding[~(before > 0)] = 0.0
        total = before + rounding
    return Bound(
        tensor=tensor,
        total=total,
        hard=NamedTerms(sums, hard=True),
        variances=NamedTerms(sums, hard=False),
        confidence=confidence,
        output_half_ulp=rounding,
        worst_case=worst,
        reference=reference,
        form=form,
    )
