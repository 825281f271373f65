"""What the report files say of a case, a machine and a comparison, each in one way."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from verify.case import Case
from verify.errors import UsageError
from verify.record import Environment
from verify.verdict import Comparison

UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseFacts:
    """What a report says of a case beside its id."""

    dtype: str
    shape: str
    """Short text such as b2 h8/2 q128 k512 d64."""
    size: float
    """Multiply-adds of the scores: orders cases from small to large; inf when the id cannot be read."""


@lru_cache(maxsize=65_536)
def case_facts(case_id: str) -> CaseFacts:
    """Facts of a case id; `unknown` for an id that this version cannot read, since old journals stay reportable."""
    try:
        p = Case.parse(case_id).problem
    except UsageError:
        return CaseFacts(dtype=UNKNOWN, shape=UNKNOWN, size=math.inf)
    heads = f"h{p.nheads}" + (f"/{p.nheads_kv}" if p.group > 1 else "")
    depth = f"d{p.head_dim}" + (f"/{p.head_dim_v}" if p.head_dim_v != p.head_dim else "")
    shape = f"b{p.batch} {heads} q{p.seqlen_q} k{p.seqlen_k} {depth}"
    return CaseFacts(dtype=p.dtype, shape=shape, size=float(p.total_q * p.seqlen_k * p.nheads * p.head_dim))


def replay_command(case_id: str, candidate: str) -> str:
    """Shell line that runs one case on one candidate again; the id is always quoted."""
    quoted = "'" + case_id.replace("'", "'\"'\"'") + "'"
    return f"python -m verify repro {quoted} --candidate {shlex.quote(candidate)}"


def worst_ratio(comparisons: Iterable[Comparison]) -> float:
    """Largest error/bound; NaN counts as worse than any number, no comparison as -inf."""
    ratios = [comparison.max_bound_ratio for comparison in comparisons]
    return math.nan if any(map(math.isnan, ratios)) else max(ratios, default=-math.inf)


def environment_key(environment: Environment) -> tuple[tuple[str, str], ...]:
    """(fact, value) pairs of an environment, packages last and in order of name."""
    facts = (("device", environment.device), ("python", environment.python), ("platform", environment.platform))
    return facts + tuple(sorted(environment.packages.items()))
