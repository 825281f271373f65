"""Synthetic records: hand-made verdicts in every status, with no kernel and no reference behind them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from verify.candidate import Route
from verify.case import Case, Recipe, features
from verify.problem import AttentionProblem
from verify.record import Environment, Record, Timing
from verify.report import write_report
from verify.verdict import Comparison, Finding, Status, Verdict, WorstElement

MakeRecords = Callable[[int], list[Record]]
ENVIRONMENT = Environment(
    python="3.11.7", platform="Linux-x86_64", packages={"numpy": "2.4.6", "cupy": "14.2.0"}, device="NVIDIA H200"
)


def comparison(tensor: str, ratio: float, rng: np.random.Generator, **changes: Any) -> Comparison:
    """Comparison with a given error/bound, rejected above 1."""
    error = float(10 ** rng.normal(-5, 1)) * (ratio if math.isfinite(ratio) else 1.0)
    exceeding = int(rng.integers(1, 4000)) if not ratio <= 1 else 0
    values: dict[str, Any] = {
        "tensor": tensor,
        "shape_ok": True,
        "dtype_ok": True,
        "n_total": 65536,
        "n_exceeding": exceeding,
        "nan_mismatch": int(math.isnan(ratio)),
        "posinf_mismatch": 0,
        "neginf_mismatch": 0,
        "nan_count": int(math.isnan(ratio)),
        "inf_count": 0,
        "max_abs": error,
        "max_rel": error * float(rng.uniform(1, 300)),
        "rms": error / float(rng.uniform(3, 6)),
        "rel_l2": error / float(rng.uniform(1, 2)),
        "gain": 1.0 + float(rng.normal(0, 1e-6)),
        "bias": float(rng.normal(0, 1)) * error / 100,
        "cosine": 1.0 - float(10 ** rng.normal(-10, 1)),
        "max_ulp": float(rng.uniform(1, 50)),
        "max_bound_ratio": ratio,
        "saturated": max(0.0, float(rng.uniform(-3, 1))),
        "fixed_limits_ok": bool(rng.uniform() < 0.7),
        "worst": tuple(element(ratio, draws) for draws in rng.uniform(size=(10, 5)).tolist()),
        "error_map": error_map(ratio, rng) if exceeding else (),
        "map_axes": ("query row", "head x column") if exceeding else ("", ""),
        "pattern": "rows 64..127 of the last query tile" if exceeding else "",
    }
    return Comparison(**(values | changes))


def error_map(ratio: float, rng: np.random.Generator) -> tuple[tuple[float, ...], ...]:
    """32 x 32 buckets, accepted but for the last rows and one infinite or NaN cell."""
    cells = np.exp(rng.normal(-2.5, 0.8, size=(32, 32))).clip(max=0.9)
    cells[24:] *= ratio if math.isfinite(ratio) else 100.0
    cells[31, 31], cells[0, 31] = ratio, math.nan
    return tuple(tuple(map(float, row)) for row in cells)


def element(ratio: float, draws: Sequence[float]) -> WorstElement:
    """One worst element at the place that five uniform numbers give."""
    row, column = int(128 * draws[0]), int(64 * draws[1])
    expected, bound = draws[2] - 0.5, 10 ** (-6 + 2 * draws[3])
    index, got = (0, row, int(8 * draws[4]), column), expected + ratio * bound
    return WorstElement(
        index=index, tile=(row // 64, column // 64), got=got, expected=expected, bound=bound, ratio=ratio
    )


def record(case: Case | str, candidate: str, findings: Sequence[Finding] = (), **changes: Any) -> Record:
    """Record of a case (or of a raw case id) with the verdict of its findings."""
    values: dict[str, Any] = {
        "run_id": "20261129-031500-ab12",
        "started_at": "2026-11-29T03:15:00Z",
        "case_id": case.case_id if isinstance(case, Case) else case,
        "origin": case.origin if isinstance(case, Case) else "user",
        "features": tuple(features(case.problem)) if isinstance(case, Case) else (),
        "recipe": str(case.recipe) if isinstance(case, Case) else "normal",
        "candidate": candidate,
        "source_hash": "0123456789ab",
        "environment": ENVIRONMENT,
        "route": Route(backend=candidate, details={"device": "H200"}),
        "verdict": Verdict.of(tuple(findings)),
        "timing": Timing(candidate_ms=1.5, reference_ms=8.0, bound_ms=2.0, checks_ms=0.7),
    }
    return Record(**(values | changes))


@pytest.fixture
def make_comparison() -> Callable[..., Comparison]:
    """comparison(tensor, ratio, **changes) with a fixed seed."""
    rng = np.random.default_rng(5)
    return lambda tensor, ratio, **changes: comparison(tensor, ratio, rng, **changes)


@pytest.fixture
def make_record() -> Callable[..., Record]:
    return record


@pytest.fixture
def make_records() -> MakeRecords:
    """make_records(n): n records of four candidates as a campaign would leave them."""
    return campaign


def campaign(count: int) -> list[Record]:
    rng = np.random.default_rng(7)
    return [_random_record(place, rng) for place in range(count)]


def _random_case(rng: np.random.Generator) -> Case:
    length, causal = int(rng.choice([17, 64, 128, 255, 512])), bool(rng.integers(2))
    problem = AttentionProblem(
        batch=int(rng.integers(1, 4)),
        seqlen_q=length,
        seqlen_k=length + int(rng.integers(0, 65)),
        nheads=4,
        nheads_kv=int(rng.choice([1, 2, 4])),
        dtype=str(rng.choice(["fp16", "bf16", "fp32"])),
        causal=causal,
        window=(64, 0) if causal and rng.integers(2) else None,
        softcap=float(rng.choice([0.0, 0.0, 30.0])),
        bias=str(rng.choice(["none", "none", "alibi"])),
    )
    recipe = [Recipe.of("normal"), Recipe.of("logits", max=100.0), Recipe.of("identical_queries")][rng.integers(3)]
    return Case(problem=problem, recipe=recipe, seed=int(rng.integers(2**62)), origin="hypothesis")


def _random_record(place: int, rng: np.random.Generator) -> Record:
    candidate = ("textbook", "tiled", "flash_sm80", "torch_sdpa")[place % 4]
    case = _random_case(rng)
    if rng.uniform() < 0.07:
        crashed = bool(rng.uniform() < 0.2)
        reason = "exit by signal 11 after 0.4 s" if crashed else "softcap is not declared"
        status = Status.CRASH if crashed else Status.UNSUPPORTED
        return record(case, candidate, [Finding(check="forward", status=status, reasons=(reason,))], route=None)
    broken = candidate == "tiled" and case.problem.causal and rng.uniform() < 0.4
    forward, backward = (
        _compared("forward", ("out", "lse"), broken, rng),
        _compared("backward", ("dq", "dk", "dv"), False, rng),
    )
    findings = (forward, backward, Finding(check="determinism", status=Status.PASS))
    causes = ("causal diagonal off by one", "tail tile not masked") if broken else ()
    return record(case, candidate, verdict=Verdict.of(findings, causes), route=_route(case, candidate))


def _route(case: Case, candidate: str) -> Route:
    if candidate != "torch_sdpa":
        return Route(backend=candidate, details={"device": "H200"})
    if case.problem.dtype == "fp32":
        return Route(backend="math", asked="flash", fallback_reason="fp32 is not supported")
    return Route(backend="flash", asked="flash")


def _compared(check: str, tensors: tuple[str, ...], broken: bool, rng: np.random.Generator) -> Finding:
    ratios = [float(np.exp(rng.normal(-2.0, 0.5))) for _ in tensors]
    ratios = [min(ratio, 0.98) for ratio in ratios]
    if broken:
        ratios[0] = float(rng.choice([math.nan, math.inf, *(10 ** rng.uniform(0.1, 5, size=8))]))
    compared = tuple(comparison(tensor, ratio, rng) for tensor, ratio in zip(tensors, ratios, strict=True))
    rejected = (c for c in compared if not c.accepted)
    reasons = tuple(f"{c.tensor}: {c.n_exceeding} of {c.n_total} elements exceed the bound" for c in rejected)
    status = Status.NONFINITE if math.isnan(ratios[0]) else Status.NUMERICAL if broken else Status.PASS
    return Finding(check=check, status=status, reasons=reasons, comparisons=compared, duration_ms=1.25)


HOSTILE = (
    "</script><script>window.stolen=1</script>",
    "<img src=x onerror=window.stolen=1>",
    "\"' onmouseover='window.stolen=1",
    "a|b`c`*d*\n# e ]]> <!-- {{ 7*7 }} {% x %} & &lt; $(x) \\",
)


@pytest.fixture(params=HOSTILE, ids=["script", "tag", "attribute", "markup"])
def hostile(request: pytest.FixtureRequest) -> str:
    """Text that means something to HTML, JavaScript, XML, Markdown, Jinja or a shell."""
    return str(request.param)


@pytest.fixture(scope="session")
def big_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Page of 10,000 records.

    A quarter of them is made and repeated: the repeats lie further apart than gzip looks back (32 KiB), so that they
    compress no better than new ones.
    """
    directory = tmp_path_factory.mktemp("big")
    return write_report(campaign(2_500) * 4, directory, title="Big", command="python -m verify run").html
