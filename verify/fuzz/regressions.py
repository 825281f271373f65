"""Pinned failing cases: one small JSON file a fault, under a folder of the user's choice, tried first by later runs."""

from __future__ import annotations

import zlib
from pathlib import Path

import msgspec

from verify.case import Case
from verify.errors import UsageError
from verify.fuzz.log import slug
from verify.fuzz.state import Fault

SCHEMA_VERSION = 1


class Regression(msgspec.Struct, frozen=True, kw_only=True):
    """One pinned case."""

    schema_version: int = SCHEMA_VERSION
    case_id: str
    candidate: str
    """Where it was found; it is tried on every candidate that takes the problem."""
    check: str
    status: str
    tensor: str = ""

    @property
    def case(self) -> Case:
        return Case.parse(self.case_id, origin="regression")


def save_regression(fault: Fault, folder: Path) -> Path:
    """Write the case of a fault and return the file; the same case gives the same file.

    Raises
    ------
    UsageError
        If the folder cannot be written.
    """
    key = fault.key
    pinned = Regression(
        case_id=fault.case_id, candidate=fault.candidate, check=key.check, status=key.status, tensor=key.tensor
    )
    name = f"{slug(fault.candidate)}-{slug(key.check)}-{zlib.crc32(fault.case_id.encode()):08x}.json"
    path = folder / name
    partial = folder / f"{name}.partial"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(pinned), indent=2) + b"\n")
        partial.replace(path)
    except OSError as error:
        raise UsageError(f"regressions={str(folder)!r}: expected a writable folder ({error.strerror})") from error
    return path


def load_regressions(folder: Path) -> tuple[Regression, ...]:
    """Pinned cases of a folder in the order of their names; none when there is no folder yet.

    Raises
    ------
    UsageError
        For a JSON file that is no pinned case, or of another version; the message names it.
    """
    found = []
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else ():
        try:
            pinned = msgspec.json.decode(path.read_bytes(), type=Regression)
            pinned.case  # noqa: B018 - refuses a case id that is none
        except (OSError, msgspec.MsgspecError, UsageError) as error:
            raise UsageError(f"regressions={str(path)!r}: expected a pinned case ({error})") from error
        if pinned.schema_version != SCHEMA_VERSION:
            raise UsageError(f"regressions={str(path)!r}: expected schema_version {SCHEMA_VERSION}")
        found.append(pinned)
    return tuple(found)
