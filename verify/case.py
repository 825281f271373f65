"""A Case: a problem, a named value recipe and a seed, with a one-line id that replays it bit for bit."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any
from urllib.parse import quote, unquote

from verify.errors import UsageError, require
from verify.problem import AttentionProblem, Window, default_scale

PREFIX = "attn1:"
ORIGINS = ("grid", "hypothesis", "regression", "capture", "user")
_NAME = re.compile(r"[a-z][a-z0-9_]*\Z")

ParamValue = int | float | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A named value design with its parameters, e.g. logits(max=100)."""

    name: str
    params: tuple[tuple[str, ParamValue], ...] = ()
    """Sorted (name, value) pairs."""

    @staticmethod
    def of(name: str, **params: ParamValue) -> Recipe:
        """Recipe from keyword parameters, in canonical order."""
        return Recipe(name=name, params=tuple(sorted(params.items())))

    def get(self, name: str, default: ParamValue) -> ParamValue:
        """Value of one parameter, or the default."""
        return dict(self.params).get(name, default)

    def __str__(self) -> str:
        return ":".join([self.name, *(f"{key}={_write_param(value)}" for key, value in self.params)])

    @staticmethod
    def parse(text: str) -> Recipe:
        """Inverse of str(recipe)."""
        name, *pairs = text.split(":")
        require(bool(_NAME.match(name)), "recipe", text, "name or name:key=value:...")
        params: dict[str, ParamValue] = {}
        for pair in pairs:
            key, separator, value = pair.partition("=")
            require(bool(separator) and bool(_NAME.match(key)), "recipe", text, "parameters of the form key=value")
            params[key] = _read_param(value)
        return Recipe.of(name, **params)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One question to a candidate. Equal case ids mean equal input bits on every machine."""

    problem: AttentionProblem
    recipe: Recipe
    seed: int
    """Seed of numpy.random.Generator(PCG64(seed)), 0 <= seed < 2^63."""
    origin: str = "user"
    """Where the case came from; not part of the id."""

    def __post_init__(self) -> None:
        require(0 <= self.seed < 2**63, "seed", self.seed, "an integer in [0, 2^63)")
        require(self.origin in ORIGINS, "origin", self.origin, "one of " + ", ".join(ORIGINS))

    @property
    def case_id(self) -> str:
        """One line without spaces or quotes; fields at their default are left out."""
        parts = [f"{f.key}={f.write(self.problem)}" for f in _FIELDS if f.needed(self.problem)]
        return PREFIX + ",".join([*parts, f"recipe={self.recipe}", f"seed={self.seed}"])

    @property
    def label(self) -> str:
        """Short text for people and for pytest ids: features, not every number."""
        p = self.problem
        shape = f"b{p.batch}h{p.nheads}" + (f"kv{p.nheads_kv}" if p.group > 1 else "")
        return "-".join([p.dtype, *features(p), f"{shape}q{p.seqlen_q}k{p.seqlen_k}d{p.head_dim}", self.recipe.name])

    @staticmethod
    def parse(text: str, origin: str = "user") -> Case:
        """Case of a case id.

        Raises
        ------
        UsageError
            If the text is no case id; the message names the part that is wrong.
        """
        body = text.strip()
        require(body.startswith(PREFIX), "case_id", text, f"text that starts with {PREFIX!r}")
        values: dict[str, str] = {}
        for part in body[len(PREFIX) :].split(","):
            key, separator, value = part.partition("=")
            known = bool(separator) and (key in _BY_KEY or key in ("recipe", "seed"))
            require(known, "case_id", part, "key=value with a known key")
            require(key not in values, "case_id", part, f"{key} once")
            values[key] = value
        recipe = Recipe.parse(values.pop("recipe", "normal"))
        seed_text = values.pop("seed", "0")
        require(seed_text.isdecimal(), "seed", seed_text, "an integer in [0, 2^63)")
        return Case(problem=_read_problem(values), recipe=recipe, seed=int(seed_text), origin=origin)


def features(p: AttentionProblem) -> list[str]:
    """Names of the features that a problem uses, for labels, filters and coverage."""
    found: list[str] = []
    if p.causal:
        found.append("causal" if p.alignment == "bottom_right" else "causal_topleft")
    tests: tuple[tuple[str, bool], ...] = (
        ("window", p.window is not None),
        (p.pattern, p.pattern != "none"),
        ("alibi" if p.bias == "alibi" else "bias", p.bias != "none"),
        ("bias_minus_infinity", p.bias_hidden > 0),
        ("softcap", p.softcap > 0),
        ("sink", p.sink),
        ("dropout", p.dropout_p > 0),
        ("gqa", p.group > 1),
        ("ragged", p.is_ragged),
        ("paged", p.page_size > 0),
        ("lengths", p.seqlens_k is not None and not p.page_size),
        (p.layout, p.layout != "bshd"),
        ("dv", p.head_dim_v != p.head_dim),
    )
    return found + [name for name, present in tests if present]


def _write_param(value: ParamValue) -> str:
    if not isinstance(value, str):
        return repr(value)
    text = quote(value, safe="")
    # Text that reads as a number gets its first character escaped, so that it comes back as text.
    return text if _read_param(text) == value else f"%{ord(value[0]):02X}{text[1:]}"


def _read_param(text: str) -> ParamValue:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return unquote(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Field:
    """How one field of the problem is written in a case id and read back."""

    key: str
    name: str
    render: Callable[[Any], str]
    read: Callable[[str], Any]

    def write(self, problem: AttentionProblem) -> str:
        return self.render(getattr(problem, self.name))

    def needed(self, problem: AttentionProblem) -> bool:
        value = getattr(problem, self.name)
        if self.name == "softmax_scale":
            return bool(value != default_scale(problem.head_dim))
        if self.name == "head_dim_v":
            return bool(value != problem.head_dim)
        if self.name == "nheads_kv":
            return bool(value != problem.nheads)
        return self.name in _ALWAYS or value != _DEFAULTS[self.name]


def _render_ints(value: tuple[int, ...]) -> str:
    return "+".join(map(str, value))


def _read_ints(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("+"))


def _read_pair(text: str) -> tuple[int, int]:
    first, second = (int(part) for part in text.split("x"))
    return first, second


def _render_window(value: Window) -> str:
    return "+".join("inf" if side is None else str(side) for side in value)


def _read_window(text: str) -> Window:
    left, right = (None if part == "inf" else int(part) for part in text.split("+"))
    return left, right


def _flag(text: str) -> bool:
    return {"0": False, "1": True}[text]


def _render_flags(value: tuple[bool, bool]) -> str:
    return "".join(str(int(flag)) for flag in value)


def _read_flags(text: str) -> tuple[bool, bool]:
    first, second = (_flag(char) for char in text)
    return first, second


def _field(key: str, name: str, render: Callable[[Any], str] = str, read: Callable[[str], Any] = int) -> _Field:
    return _Field(key=key, name=name, render=render, read=read)


_FIELDS = (
    _field("b", "batch"),
    _field("sq", "seqlen_q"),
    _field("sk", "seqlen_k"),
    _field("h", "nheads"),
    _field("hkv", "nheads_kv"),
    _field("d", "head_dim"),
    _field("dv", "head_dim_v"),
    _field("dtype", "dtype", str, str),
    _field("scale", "softmax_scale", repr, float),
    _field("causal", "causal", lambda flag: str(int(flag)), _flag),
    _field("align", "alignment", str, str),
    _field("window", "window", _render_window, _read_window),
    _field("pattern", "pattern", str, str),
    _field("keep", "keep_fraction", repr, float),
    _field("block", "block_size", lambda pair: f"{pair[0]}x{pair[1]}", _read_pair),
    _field("bias", "bias", str, str),
    _field("biasbc", "bias_broadcast", _render_flags, _read_flags),
    _field("biasinf", "bias_hidden", repr, float),
    _field("softcap", "softcap", repr, float),
    _field("sink", "sink", lambda flag: str(int(flag)), _flag),
    _field("dropout", "dropout_p", repr, float),
    _field("cuq", "cu_seqlens_q", _render_ints, _read_ints),
    _field("cuk", "cu_seqlens_k", _render_ints, _read_ints),
    _field("lenk", "seqlens_k", _render_ints, _read_ints),
    _field("page", "page_size"),
    _field("layout", "layout", str, str),
)
_BY_KEY = {field.key: field for field in _FIELDS}
_DEFAULTS: Mapping[str, Any] = {f.name: f.default for f in fields(AttentionProblem)}
_ALWAYS = ("batch", "seqlen_q", "seqlen_k", "nheads", "head_dim", "dtype")


def _read_problem(texts: Mapping[str, str]) -> AttentionProblem:
    values: dict[str, Any] = {}
    for key, text in texts.items():
        field = _BY_KEY[key]
        try:
            values[field.name] = field.read(text)
        except (ValueError, KeyError) as error:
            raise UsageError(f"case_id={key}={text!r}: expected a value of {field.name}") from error
    head_dim = values.setdefault("head_dim", _DEFAULTS["head_dim"])
    require(head_dim >= 1, "head_dim", head_dim, "an integer >= 1")
    values.setdefault("head_dim_v", head_dim)
    values.setdefault("nheads_kv", values.get("nheads", _DEFAULTS["nheads"]))
    values.setdefault("softmax_scale", default_scale(head_dim))
    return AttentionProblem(**values)
