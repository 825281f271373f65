"""The example database is kept where it is asked for, one part a candidate."""

import importlib.util
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.verify.fuzz.support import campaign
from verify.errors import UsageError
from verify.fuzz import register_profiles
from verify.fuzz.database import cache_folder, open_database
from verify.fuzz.lane import Lane
from verify.fuzz.profiles import PROFILES

SERVER = next(filter(None, map(shutil.which, ("redis-server", "valkey-server"))), None)
START_S = 10.0


@pytest.fixture
def redis_address(tmp_path: Path) -> Iterator[str]:
    """Address of a server of this test's own, on a socket in its folder, without persistence."""
    if SERVER is None:
        pytest.skip("neither redis-server nor valkey-server is installed")
    if importlib.util.find_spec("redis") is None:
        pytest.skip("the package redis is not installed")
    socket = tmp_path / "redis.socket"
    options = ["--port", "0", "--unixsocket", str(socket), "--save", "", "--appendonly", "no", "--dir", str(tmp_path)]
    with subprocess.Popen([SERVER, *options], stdout=subprocess.DEVNULL) as server:
        deadline = time.monotonic() + START_S
        while not socket.exists() and server.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        try:
            yield f"unix://{socket}?db=0"
        finally:
            server.terminate()


@pytest.fixture
def hypothesis_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Campaigns without their other sources, so that a fault comes from Hypothesis."""
    for source in ("_grid", "_uniform"):
        monkeypatch.setattr(Lane, source, lambda lane: None)


def test_examples_come_back_in_their_scope_alone(tmp_path: Path) -> None:
    open_database(str(tmp_path), "one").save(b"key", b"value")
    assert list(open_database(str(tmp_path), "one").fetch(b"key")) == [b"value"]
    assert list(open_database(str(tmp_path), "other").fetch(b"key")) == []


def test_the_cache_folder_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ATTN_VERIFY_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "attn-verify"
    monkeypatch.setenv("ATTN_VERIFY_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
    open_database("", "scope").save(b"key", b"value")
    assert any((tmp_path / "own" / "hypothesis").iterdir())


def test_a_server_keeps_examples_in_their_scope_alone(redis_address: str) -> None:
    open_database(redis_address, "one").save(b"key", b"value")
    assert list(open_database(redis_address, "one").fetch(b"key")) == [b"value"]
    assert list(open_database(redis_address, "other").fetch(b"key")) == []


@pytest.mark.usefixtures("hypothesis_alone")
def test_campaigns_on_one_server_begin_with_what_the_other_found(redis_address: str, tmp_path: Path) -> None:
    assert _examples_until_the_fault(tmp_path / "first", redis_address, seed=1) > 1
    assert _examples_until_the_fault(tmp_path / "second", redis_address, seed=2) == 1


@pytest.mark.usefixtures("hypothesis_alone")
def test_a_campaign_begins_with_what_another_left_in_the_folder(tmp_path: Path) -> None:
    examples = str(tmp_path / "examples")
    assert _examples_until_the_fault(tmp_path / "first", examples, seed=1) > 1
    assert _examples_until_the_fault(tmp_path / "second", examples, seed=2) == 1


def _examples_until_the_fault(folder: Path, database: str, *, seed: int) -> int:
    state = campaign(folder, "impostor:wrong_kv_head", seed=seed, database=database)
    return next(iter(state.faults.values())).found.examples


def test_a_redis_address_without_a_server_is_refused_in_one_line() -> None:
    with pytest.raises(UsageError, match="database='redis://") as refusal:
        open_database("redis://127.0.0.1:1/0", "scope")
    assert "\n" not in str(refusal.value)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="database="):
        open_database(str(tmp_path / "file" / "under"), "scope")


def test_profiles_are_known_to_hypothesis() -> None:
    register_profiles()
    examples = [settings.get_profile(name).max_examples for name in PROFILES]
    assert examples == sorted(examples)
