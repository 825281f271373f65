"""Numbers and user text in plain and Markdown form."""

from __future__ import annotations

import math
import re

_MARKDOWN = re.compile(r"([\\`*_\[\]|~$#!{}()+])")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Control characters and bidirectional overrides, which can make a text read as another one."""


def show_number(value: float) -> str:
    """Three significant digits; a dash for -inf, which stands for "nothing was compared"."""
    if math.isnan(value):
        return "NaN"
    return "–" if value == -math.inf else f"{value:.3g}"


def clip(text: str, limit: int) -> str:
    """Text of at most `limit` characters, the middle left out."""
    if len(text) <= limit:
        return text
    head = (limit - 1) * 2 // 3
    return text[:head] + "…" + text[head + 1 - limit :]


def plain_line(text: str) -> str:
    """Text on one line with control characters written as escapes."""
    return _CONTROL.sub(lambda found: found.group().encode("unicode_escape").decode("ascii"), text)


def markdown_line(text: str, limit: int = 300) -> str:
    """Text that GitHub-flavoured Markdown, table cells included, shows as it is."""
    entities = plain_line(clip(text, limit)).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKDOWN.sub(r"\\\1", entities)


def markdown_code(text: str) -> str:
    """Fenced block with a fence longer than any run of backticks in the text."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}sh\n{plain_line(text)}\n{fence}"
