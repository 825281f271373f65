"""The record of one case on one candidate: one JSON line. Non-finite numbers are strings, the schema has a version."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from verify.candidate import Route
from verify.verdict import Verdict

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The machine and libraries of a run."""

    python: str
    platform: str
    packages: Mapping[str, str] = field(default_factory=dict)
    """Distribution -> version."""
    device: str = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Wall-clock parts of one case in milliseconds."""

    candidate_ms: float = 0.0
    reference_ms: float = 0.0
    bound_ms: float = 0.0
    checks_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Everything that a report needs of one case and candidate."""

    run_id: str
    started_at: str
    """UTC, ISO 8601."""
    case_id: str
    origin: str
    features: tuple[str, ...]
    recipe: str
    candidate: str
    source_hash: str
    environment: Environment
    route: Route | None
    verdict: Verdict
    timing: Timing = field(default_factory=Timing)
    schema_version: int = SCHEMA_VERSION


def encode_record(record: Record) -> bytes:
    """One JSON line, newline included; nan, inf and -inf become the strings "nan", "inf", "-inf"."""
    return msgspec.json.encode(_finite(msgspec.to_builtins(record))) + b"\n"


def decode_record(line: bytes) -> Record:
    """Inverse of encode_record; msgspec.ValidationError for a line that is no record."""
    return msgspec.json.decode(line, type=Record, strict=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return value
