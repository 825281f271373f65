"""Laws of writing a report: all or nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from verify.errors import UsageError
from verify.record import Record
from verify.report import write_report
from verify.report.files import write_together

MakeRecords = Callable[[int], list[Record]]
OLD = {"index.html": "old page", "summary.md": "old summary", "junit.xml": "old xml"}


def contents(directory: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in directory.iterdir()}


def test_a_report_is_three_files_and_nothing_else(tmp_path: Path, make_records: MakeRecords) -> None:
    paths = write_report(make_records(5), tmp_path / "new" / "place", title="Nightly", command="run")
    assert {path.name for path in (tmp_path / "new" / "place").iterdir()} == set(OLD)
    assert paths.html.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


@pytest.mark.parametrize("existing", [{}, OLD, {"summary.md": "old summary"}], ids=["none", "all", "one"])
@pytest.mark.parametrize("failing", [0, 1, 2])
def test_a_rename_that_fails_leaves_the_old_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, existing: dict[str, str], failing: int
) -> None:
    for name, text in existing.items():
        (tmp_path / name).write_text(text)
    rename, calls = Path.replace, []

    def fail_once(self: Path, target: Path) -> Path:
        calls.append(target)
        if len(calls) == failing + 1:
            raise OSError(28, "No space left on device")
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", fail_once)
    with pytest.raises(OSError, match="No space left"):
        write_together(tmp_path, dict.fromkeys(OLD, "new"))
    assert contents(tmp_path) == existing


def test_a_text_that_cannot_be_written_leaves_the_old_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_records: MakeRecords
) -> None:
    write_together(tmp_path, OLD)
    monkeypatch.setattr("verify.report.files.os.fsync", lambda _: (_ for _ in ()).throw(OSError(5, "I/O error")))
    with pytest.raises(OSError, match="I/O error"):
        write_report(make_records(5), tmp_path, title="Nightly", command="run")
    assert contents(tmp_path) == OLD


def test_a_file_in_the_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "report").write_text("mine")
    with pytest.raises(UsageError, match=r"directory=.*report.*: expected a directory"):
        write_together(tmp_path / "report", OLD)


def test_other_files_and_texts_that_utf8_cannot_carry_do_no_harm(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    write_together(tmp_path, {"summary.md": "a\udc80b"})
    assert contents(tmp_path) == {"notes.txt": "mine", "summary.md": "a\\udc80b"}
