"""Laws of the page that need no browser."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable
from html.parser import HTMLParser

from verify.record import Record
from verify.report import html_page
from verify.verdict import Finding, Status


class Elements(HTMLParser):
    """All tags with their attributes, and the text of the scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        self.found.append((f"/{tag}", {}))

    def handle_data(self, data: str) -> None:
        if self.found and self.found[-1] == ("script", {}):
            self.scripts.append(data)


def test_the_page_refers_to_nothing_outside(make_records: Callable[[int], list[Record]]) -> None:
    elements = Elements(html_page(make_records(50), title="Nightly", command="run")).found
    links = [value for _, attributes in elements for key, value in attributes.items() if key in ("src", "href")]
    assert links
    assert all(link is not None and link.startswith("#") for link in links)
    assert not {"link", "img", "iframe", "object"} & {tag for tag, _ in elements}


def test_hostile_text_adds_no_element_and_no_handler(make_record: Callable[..., Record], hostile: str) -> None:
    def structure(text: str) -> list[tuple[str, list[str]]]:
        finding = Finding(check=text, status=Status.CRASH, reasons=(text,))
        page = html_page([make_record(text, text, [finding])], title=text, command=text)
        return [(tag, sorted(attributes)) for tag, attributes in Elements(page).found]

    assert structure(hostile) == structure("harmless")


def test_the_policy_allows_the_script_of_the_page_and_no_other(make_records: Callable[[int], list[Record]]) -> None:
    page = html_page(make_records(5), title="Nightly", command="run")
    scripts = Elements(page).scripts
    policy = re.search(r"script-src 'sha256-([^']+)'", page)
    assert policy is not None
    assert len(scripts) == 1
    assert base64.b64decode(policy[1]) == hashlib.sha256(scripts[0].encode()).digest()


def test_the_head_tells_the_totals_without_a_script(make_records: Callable[[int], list[Record]]) -> None:
    records = make_records(200)
    page = html_page(records, title="Nightly", command="python -m verify run --grid")
    failed = sum(record.verdict.status.is_failure for record in records)
    assert f"✗ {failed} of 200 cases failed" in page
    assert "python -m verify run --grid" in page
    assert "20261129-031500-ab12" in page


def test_a_run_without_records_has_a_page() -> None:
    assert "Nothing was shown" in html_page([], title="Nightly", command="run")
