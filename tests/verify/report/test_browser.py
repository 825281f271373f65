"""The page in a real browser, driven over the plain WebDriver protocol: filters, counts, details, speed, escaping."""

from __future__ import annotations

import base64
import json
import math
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from verify.record import Record
from verify.report import replay_command, write_report
from verify.verdict import Comparison, Finding, Status

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    BROWSER is None or DRIVER is None,
    reason="needs chromium and chromedriver on the PATH: apt-get install chromium chromium-driver",
)
MakeRecords = Callable[[int], list[Record]]
ELEMENT_KEY = "element-6066-11e4-a52e-4f735466cecf"
"""Key under which WebDriver returns an element (W3C WebDriver, section 12.1)."""


class Page:
    """One browser session."""

    def __init__(self, server: str) -> None:
        flags = "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --window-size=1500,1200"
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": {"binary": BROWSER, "args": flags.split()},
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        self.root = server
        session = self.send("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self.root = f"{server}/session/{session['sessionId']}"

    def send(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = json.dumps(body if body is not None else {}).encode() if method == "POST" else None
        request = urllib.request.Request(self.root + path, data=data, method=method)
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)["value"]

    def open(self, path: Path) -> None:
        # A new document, also when only the part behind # differs.
        self.send("POST", "/url", {"url": "about:blank"})
        self.send("POST", "/url", {"url": path.resolve().as_uri()})
        self.wait("return document.body.dataset.ready")

    def run(self, script: str, *arguments: Any) -> Any:
        return self.send("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def find(self, selector: str) -> str:
        found = self.send("POST", "/element", {"using": "css selector", "value": selector})
        return str(found[ELEMENT_KEY])

    def click(self, selector: str) -> None:
        place = self.find(selector)
        self.run("arguments[0].scrollIntoView({block: 'center'})", {ELEMENT_KEY: place})
        self.send("POST", f"/element/{place}/click")

    def write(self, selector: str, text: str) -> None:
        self.send("POST", f"/element/{self.find(selector)}/value", {"text": text})

    def text(self, selector: str) -> str:
        return str(self.run("return document.querySelector(arguments[0]).innerText", selector))

    def count(self) -> int:
        """Cases that pass the filters, as the page says."""
        return int(self.text("#count").split()[0])

    def number_of(self, selector: str) -> int:
        return int(self.run("return document.querySelectorAll(arguments[0]).length", selector))

    def choose(self, selector: str, value: str) -> None:
        script = "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input', {bubbles: true}))"
        self.run(script, {ELEMENT_KEY: self.find(selector)}, value)

    def wait(self, script: str) -> Any:
        deadline = time.monotonic() + 30
        while not (value := self.run(script)):
            assert time.monotonic() < deadline, f"the page never reached: {script}"
            time.sleep(0.05)
        return value

    def complaints(self) -> list[str]:
        """Errors of the console since the last call: exceptions and everything that the content policy blocked."""
        entries = self.send("POST", "/se/log", {"type": "browser"})
        return [entry["message"] for entry in entries if entry["level"] == "SEVERE"]

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.send("GET", "/screenshot")))

    def close(self) -> None:
        self.send("DELETE", "")


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    """Headless browser for the module; chromedriver picks its own free port and prints it."""
    process = subprocess.Popen([str(DRIVER), "--port=0"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = next(line for line in process.stdout if "started successfully on port" in line)
        browser = Page(f"http://127.0.0.1:{int(line.rstrip().rstrip('.').rsplit(' ', 1)[1])}")
        yield browser
        browser.close()
    finally:
        process.terminate()
        process.wait(timeout=20)
        process.stdout.close()


@pytest.fixture
def shown(page: Page, tmp_path: Path, make_records: MakeRecords) -> tuple[Page, list[Record]]:
    records = make_records(400)
    page.open(write_report(records, tmp_path, title="Nightly", command="python -m verify run").html)
    return page, records


def failures_of(records: list[Record], candidate: str, check: str) -> int:
    findings = [(r.candidate, f.check, f.status) for r in records for f in r.verdict.findings]
    return sum(c == candidate and k == check and status.is_failure for c, k, status in findings)


def test_a_matrix_cell_filters_the_table_to_the_cases_that_it_counts(shown: tuple[Page, list[Record]]) -> None:
    page, records = shown
    cell = '#matrix-table button[data-candidate="tiled"][data-column="forward"]'
    failed = failures_of(records, "tiled", "forward")
    assert page.text(f"{cell} .fail") == f"✗ {failed}"
    page.click(cell)
    assert page.count() == sum(r.candidate == "tiled" for r in records)
    page.choose("[name=status]", "*fail")
    assert page.count() == failed > 0


@pytest.mark.parametrize(("by", "columns"), [("check", 3), ("dtype", 3), ("feature", 6), ("recipe", 3), ("tensor", 5)])
def test_every_cell_of_each_matrix_counts_the_cases_that_it_shows(
    shown: tuple[Page, list[Record]], by: str, columns: int
) -> None:
    page, _ = shown
    page.choose("#matrix-by", by)
    cells = page.run(
        "return [...document.querySelectorAll('#matrix-table button')].map((cell) => {"
        "  const sum = (kind) => Number((cell.querySelector('.counts ' + kind) || {textContent: ''})"
        "    .textContent.replace(/[^0-9]/g, ''));"
        "  const count = () => parseInt(document.getElementById('count').textContent);"
        "  cell.click(); const all = count();"
        "  const status = document.querySelector('[name=status]');"
        "  status.value = '*fail'; status.dispatchEvent(new Event('input'));"
        "  return [['.pass', '.fail', '.skip', '.powerless'].map(sum), all, count()]; })"
    )
    assert len(cells) == 4 * columns  # four candidates
    assert all(sum(counts) == shown_in_all for counts, shown_in_all, _ in cells)
    assert by == "tensor" or all(counts[1] == failing for counts, _, failing in cells)


def test_typed_words_must_all_occur_and_reset_brings_every_case_back(shown: tuple[Page, list[Record]]) -> None:
    page, records = shown
    page.write("[name=text]", "TILED window")
    expected = sum(r.candidate == "tiled" and "window" in r.features for r in records)
    assert page.count() == expected > 0
    page.click("#reset")
    assert page.count() == len(records)


def test_a_failing_row_expands_to_its_replay_line_comparisons_worst_elements_and_map(
    shown: tuple[Page, list[Record]],
) -> None:
    page, records = shown
    page.write("[name=text]", "diagonal")
    page.click("#cases-table tbody .toggle")
    command = page.text(".detail .replay code")
    failing = {r.case_id for r in records if r.verdict.likely_causes}
    assert command.split("'")[1] in failing
    assert command.endswith("--candidate tiled")
    assert page.number_of(".detail .comparisons tbody tr") == 5
    assert page.number_of(".detail .finding > div > .evidence .elements tbody tr") == 10
    assert page.number_of(".detail svg.map[role=img] rect") == 32 * 32
    assert "causal diagonal off by one" in page.text(".detail ol")
    assert "[object" not in page.text("main")


def test_a_row_opens_and_a_column_sorts_from_the_keyboard(shown: tuple[Page, list[Record]]) -> None:
    page, _ = shown
    page.write("#cases-table .toggle", "\ue007")  # Enter
    assert page.number_of("tr.detail") == 1
    page.write('[data-sort="candidate"]', "\ue007")
    assert page.text("#cases-table tbody tr td:nth-child(3)") == "flash_sm80"
    assert page.run("return document.activeElement.dataset.sort") == "candidate"


def test_each_kind_of_failure_shows_its_cases_and_together_they_are_all(shown: tuple[Page, list[Record]]) -> None:
    page, records = shown
    seen = 0
    for place in range(page.number_of("#failures tbody tr")):
        button = f'#failures button[data-group="{place}"]'
        page.click(button)
        assert page.count() == int(page.text(button))
        seen += page.count()
    assert seen == sum(record.verdict.status.is_failure for record in records) > 0


def test_the_fixed_limits_table_sets_both_verdicts_on_every_comparison_side_by_side(
    shown: tuple[Page, list[Record]],
) -> None:
    page, records = shown
    page.wait("return document.querySelector('#limits-table button')")
    script = "return [...document.querySelectorAll(arguments[0])].map((b) => Number(b.textContent))"
    compared = [c for r in records for f in r.verdict.findings for c in f.comparisons]
    for name, bound, fixed in (
        ("both_accept", True, True),
        ("fixed_rejects", True, False),
        ("bound_rejects", False, True),
        ("both_reject", False, False),
    ):
        expected = sum(c.accepted is bound and c.fixed_limits_ok is fixed for c in compared)
        assert sum(page.run(script, f"#limits-table button[data-limits={name}]")) == expected > 0


def test_zero_infinity_and_nan_stand_at_the_ends_of_a_distribution(
    page: Page, tmp_path: Path, make_record: Callable[..., Record], make_comparison: Callable[..., Comparison]
) -> None:
    ratios = (0.0, 0.01, 0.5, 0.5, 20.0, math.inf, math.nan)
    findings = [
        Finding(check="f", status=Status.NUMERICAL, comparisons=(make_comparison("out", ratio),)) for ratio in ratios
    ]
    records = [make_record("attn1:x", "mine", [finding]) for finding in findings]
    page.open(write_report(records, tmp_path, title="Ends", command="run").html)
    bars = page.run(
        "return [...document.querySelectorAll('#plot-candidate g[data-count]')]"
        ".map((g) => [Number(g.firstChild.nextSibling.getAttribute('x')), Number(g.dataset.count)])"
    )
    assert [count for _, count in sorted(bars)] == [1, 1, 2, 1, 2]
    assert all(0 <= left < 600 for left, _ in bars)


def test_every_compared_case_is_in_one_bar_of_each_distribution(shown: tuple[Page, list[Record]]) -> None:
    page, records = shown
    compared = sum(any(f.comparisons for f in r.verdict.findings) for r in records)
    for plot in ("candidate", "recipe", "max_abs", "max_rel", "one_minus_cosine"):
        selector = f"#plot-{plot} g[data-count]"
        page.wait(f"return document.querySelector('{selector}')")
        counts = page.run(f"return [...document.querySelectorAll('{selector}')].map((g) => Number(g.dataset.count))")
        assert sum(counts) == compared > 0


def test_a_view_survives_in_the_address(shown: tuple[Page, list[Record]]) -> None:
    page, _ = shown
    page.write("[name=text]", "gqa")
    count, address = page.count(), page.run("return location.href")
    page.send("POST", "/url", {"url": "about:blank"})
    page.send("POST", "/url", {"url": address})
    page.wait("return document.body.dataset.ready")
    assert page.count() == count


def test_the_page_asks_for_nothing_and_complains_of_nothing(shown: tuple[Page, list[Record]]) -> None:
    page, _ = shown
    page.complaints()
    page.send("POST", "/refresh", {})
    page.wait("return document.body.dataset.ready")
    assert page.run("return performance.getEntriesByType('resource').length") == 0
    assert page.complaints() == []


def test_hostile_text_is_shown_and_never_run(
    page: Page, tmp_path: Path, make_record: Callable[..., Record], hostile: str
) -> None:
    finding = Finding(check=hostile, status=Status.CRASH, reasons=(hostile,))
    record = make_record(hostile, hostile, [finding], features=(hostile,), recipe=hostile, origin=hostile)
    page.open(write_report([record], tmp_path, title=hostile, command=hostile).html)
    page.click("#cases-table .toggle")
    assert page.run("return window.stolen") is None
    assert page.number_of("img, iframe, b b") == 0
    assert page.run("return document.querySelector('.detail li').textContent") == hostile
    command = page.run("return document.querySelector('.detail .replay code').textContent")
    assert command == replay_command(hostile, hostile)
    assert page.number_of("#cases-table tr.row") == 1


def test_ten_thousand_records_stay_small_and_quick(page: Page, tmp_path: Path, big_report: Path) -> None:
    assert big_report.stat().st_size < 6_000_000
    page.open(big_report)
    assert page.count() == 10_000
    assert page.number_of("#cases-table tr.row") == 50
    elapsed_ms = page.run(
        "const field = document.querySelector('[name=text]'), start = performance.now();"
        "field.value = 'tiled causal diagonal'; field.dispatchEvent(new Event('input'));"
        "document.body.offsetHeight; return performance.now() - start"
    )
    assert 0 < page.count() < 10_000
    assert elapsed_ms < 500
