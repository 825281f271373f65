"""Closed statuses, findings and verdicts. A verdict has no truth value: ask for its status."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NoReturn


class Status(StrEnum):
    """How one check, or one case as a whole, ended. UNSUPPORTED is the only skip."""

    PASS = "PASS"
    NUMERICAL = "NUMERICAL"
    NONFINITE = "NONFINITE"
    SHAPE = "SHAPE"
    DTYPE = "DTYPE"
    MUTATED_INPUT = "MUTATED_INPUT"
    OUT_OF_BOUNDS = "OUT_OF_BOUNDS"
    UNWRITTEN = "UNWRITTEN"
    RACE = "RACE"
    NONDETERMINISTIC = "NONDETERMINISTIC"
    COMPILE_ERROR = "COMPILE_ERROR"
    LAUNCH_ERROR = "LAUNCH_ERROR"
    CRASH = "CRASH"
    HANG = "HANG"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    REFUSED = "REFUSED"
    UNSUPPORTED = "UNSUPPORTED"
    POWERLESS = "POWERLESS"
    REFERENCE_DISAGREES = "REFERENCE_DISAGREES"

    @property
    def is_failure(self) -> bool:
        """Everything but a pass, a skip and a case without power."""
        return self not in (Status.PASS, Status.UNSUPPORTED, Status.POWERLESS)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstElement:
    """One element with its place, values and share of the bound."""

    index: tuple[int, ...]
    """Logical index in the tensor."""
    tile: tuple[int, int]
    """(row tile, column tile) in the candidate's declared tiles."""
    got: float
    expected: float
    bound: float
    ratio: float
    """|got - expected| / bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One output against its reference and bound; complete on success too."""

    tensor: str
    shape_ok: bool
    dtype_ok: bool
    n_total: int
    """Elements compared."""
    n_exceeding: int
    """Finite elements whose error is not within the bound."""
    nan_mismatch: int
    posinf_mismatch: int
    neginf_mismatch: int
    nan_count: int
    """NaN elements that the candidate returned."""
    inf_count: int
    """Infinite elements that the candidate returned."""
    max_abs: float
    max_rel: float
    """Largest |got - expected| / |expected| over elements with expected != 0."""
    rms: float
    """Root mean square error."""
    rel_l2: float
    """|got - expected|_2 / |expected|_2."""
    gain: float
    """Least-squares factor of got on expected; 1 = no scale error."""
    bias: float
    """Mean signed error."""
    cosine: float
    max_ulp: float
    """Largest error in units in the last place of the output format at the expected value."""
    max_bound_ratio: float
    """Largest |got - expected| / bound."""
    saturated: float
    """Share of elements whose bound is no smaller than the spread of the reference: not checkable."""
    fixed_limits_ok: bool
    """Whether the briefs' fixed limits accept it (reported beside the bound, never decisive)."""
    worst: tuple[WorstElement, ...] = ()
    """Up to ten worst elements, by ratio."""
    pattern: str = ""
    """Where the exceeding elements lie."""
    error_map: tuple[tuple[float, ...], ...] = ()
    """Largest error/bound in each (row bucket, column bucket), at most 32 x 32; on failures only."""
    map_axes: tuple[str, str] = ("", "")
    """Names of the two axes of error_map."""

    @property
    def accepted(self) -> bool:
        """All of shape, dtype, special values and every element's bound hold."""
        specials = self.nan_mismatch + self.posinf_mismatch + self.neginf_mismatch
        return self.shape_ok and self.dtype_ok and specials == 0 and self.n_exceeding == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one check says of one case."""

    check: str
    status: Status
    reasons: tuple[str, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    duration_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The findings of all checks on one case and candidate."""

    status: Status
    """The worst status of the findings."""
    findings: tuple[Finding, ...] = ()
    likely_causes: tuple[str, ...] = field(default=())
    """Causes that fit the pattern, most likely first."""

    @staticmethod
    def of(findings: tuple[Finding, ...], likely_causes: tuple[str, ...] = ()) -> Verdict:
        """Verdict whose status is the first failure in the order of Status, else the weakest non-failure."""
        if not findings:
            return Verdict(status=Status.POWERLESS, findings=())
        order = {status: place for place, status in enumerate(Status)}
        failures = [f.status for f in findings if f.status.is_failure]
        ran = [f.status for f in findings if f.status is not Status.UNSUPPORTED]
        if failures:
            status = min(failures, key=order.__getitem__)
        elif not ran:
            status = Status.UNSUPPORTED
        else:
            status = Status.POWERLESS if Status.POWERLESS in ran else Status.PASS
        return Verdict(status=status, findings=findings, likely_causes=likely_causes)

    def __bool__(self) -> NoReturn:
        raise TypeError("a Verdict has no truth value: compare its status")
