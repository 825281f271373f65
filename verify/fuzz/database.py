"""Where Hypothesis keeps its examples: the cache folder, another folder, or a Redis server that machines share.

Keys are scoped by candidate, because the draws of one candidate mean other cases for another.
"""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hypothesis.database import DirectoryBasedExampleDatabase, ExampleDatabase

from verify.errors import UsageError

CACHE_VARIABLE = "ATTN_VERIFY_CACHE"
REDIS_PREFIXES = ("redis://", "rediss://", "unix://")


class ScopedDatabase(ExampleDatabase):
    """A part of another database that belongs to one scope."""

    def __init__(self, inner: ExampleDatabase, scope: str) -> None:
        super().__init__()
        self._inner = inner
        self._scope = hashlib.sha256(scope.encode()).digest()

    def save(self, key: bytes, value: bytes) -> None:
        self._inner.save(self._scope + key, value)

    def fetch(self, key: bytes) -> Iterable[bytes]:
        return self._inner.fetch(self._scope + key)

    def delete(self, key: bytes, value: bytes) -> None:
        self._inner.delete(self._scope + key, value)


def cache_folder() -> Path:
    """ATTN_VERIFY_CACHE, else attn-verify in XDG_CACHE_HOME, else in ~/.cache."""
    own = os.environ.get(CACHE_VARIABLE)
    if own:
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "attn-verify"


def open_database(location: str, scope: str) -> ExampleDatabase:
    """Example database of a scope.

    Parameters
    ----------
    location
        A folder, a redis://, rediss:// or unix:// address, or empty for the cache folder.
    scope
        Candidate and space of cases.

    Raises
    ------
    UsageError
        A Redis address without the redis package, or of no server.
    """
    if location.startswith(REDIS_PREFIXES):
        return ScopedDatabase(_redis(location), scope)
    folder = Path(location) if location else cache_folder() / "hypothesis"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"database={location!r}: expected a writable folder ({error.strerror})") from error
    return ScopedDatabase(DirectoryBasedExampleDatabase(folder), scope)


def _redis(address: str) -> ExampleDatabase:
    try:
        redis: Any = importlib.import_module("redis")
        database: Any = importlib.import_module("hypothesis.extra.redis").RedisExampleDatabase
    except ImportError as error:
        raise UsageError(f"database={address!r}: expected the package redis to be installed") from error
    server: Any = redis.Redis.from_url(address)
    try:
        server.ping()
    except redis.RedisError as error:
        raise UsageError(f"database={address!r}: expected a Redis server ({error})") from error
    opened: ExampleDatabase = database(server)
    return opened
