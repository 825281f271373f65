"""The example database is kept where it is asked for, one part a candidate."""

from pathlib import Path

import pytest
from hypothesis import settings

from verify.errors import UsageError
from verify.fuzz import register_profiles
from verify.fuzz.database import cache_folder, open_database
from verify.fuzz.profiles import PROFILES


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
