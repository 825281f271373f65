"""verify.worker.protocol for a child without msgspec: the same messages and bytes, in pure Python.

Takes the place of that module in the bundle for another interpreter (verify.worker.bundle). The parent keeps the strict
one: what is checked here is only what keeps an honest worker honest.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from verify.candidate import Route
from verify.contract import Contract
from verify.problem import AttentionProblem
from verify.verdict import Status

MAGIC = b"AVW1"
MAX_TEXT = 64 << 10
DESCRIPTORS = ("request", "reply", "inputs", "outputs", "stack")
DUMP_SIGNAL = signal.SIGUSR1
_HEADER = struct.Struct("<4sI")


class ProtocolError(Exception):
    """The other side broke the protocol; the message is one line."""


@dataclass(frozen=True, kw_only=True)
class InputSpec:
    name: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    writeable: bool


@dataclass(frozen=True, kw_only=True)
class OutputSpec:
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int


@dataclass(frozen=True, kw_only=True)
class Start:
    nonce: bytes
    loader: str
    memory_limit_bytes: int | None
    describe: bool = False


@dataclass(frozen=True, kw_only=True)
class Request:
    nonce: bytes
    problem: AttentionProblem
    inputs: tuple[InputSpec, ...]
    input_bytes: int
    output_limit_bytes: int
    backward: bool
    with_dlse: bool
    seed: int
    probe_order: bool = False
    prefill: str = "nan"
    splits: int = 0


@dataclass(frozen=True, kw_only=True)
class Described:
    name: str
    contract: Contract
    unavailable: str
    sources: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Ready:
    nonce: bytes
    described: Described | None = None


@dataclass(frozen=True, kw_only=True)
class RouteSpec:
    backend: str
    asked: str
    fallback_reason: str
    details: dict[str, str]

    def to_route(self) -> Route:
        return Route(backend=self.backend, asked=self.asked, fallback_reason=self.fallback_reason, details=self.details)


@dataclass(frozen=True, kw_only=True)
class Ran:
    nonce: bytes
    outputs: tuple[OutputSpec, ...]
    route: RouteSpec
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Failed:
    nonce: bytes
    status: Status
    message: str
    traceback: str
    notes: tuple[str, ...]
    lost_device: str


ToChild = Start | Request
ToParent = Ready | Ran | Failed
BAD_ROUTE = (TypeError, UnicodeEncodeError)


def route_spec(route: Route) -> RouteSpec:
    """The route as it is sent; one of BAD_ROUTE for fields of a wrong kind."""
    texts = {name: getattr(route, name) for name in ("backend", "asked", "fallback_reason")}
    details = dict(route.details)
    for value in (*texts.values(), *details, *details.values()):
        if not isinstance(value, str):
            raise TypeError(f"expected text, got {type(value).__name__}")
        value.encode()
    return RouteSpec(**texts, details=details)


def may_be_claimed(status: Status) -> bool:
    """Whether a candidate may report that of itself: a failure, and none that only a comparison can find."""
    return status.is_failure and status not in (Status.NUMERICAL, Status.MUTATED_INPUT, Status.REFERENCE_DISAGREES)


def encode_frame(message: ToParent) -> bytes:
    """Header and body of one message to the parent."""
    fields = {"type": type(message).__name__.lower()} | _fields(message)
    body = b"".join(_packed(fields))
    return _HEADER.pack(MAGIC, len(body)) + body


def decode_request(body: bytes) -> ToChild:
    """Message of the parent from its body."""
    fields = _Unpacker(body).value()
    kind = fields.pop("type")
    if kind == "start":
        return Start(**fields)
    fields["problem"] = AttentionProblem(**fields["problem"])
    fields["inputs"] = tuple(InputSpec(**spec) for spec in fields["inputs"])
    return Request(**fields)


def read_request(fd: int) -> ToChild | None:
    """Next message to the worker (blocking), or None when the parent closed the pipe."""
    header = _read_exactly(fd, _HEADER.size)
    if header is None:
        return None
    body = _read_exactly(fd, _HEADER.unpack(header)[1])
    return None if body is None else decode_request(body)


def write_all(fd: int, data: bytes) -> None:
    """Write everything to a blocking descriptor."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _read_exactly(fd: int, count: int) -> bytes | None:
    data = bytearray()
    while len(data) < count:
        piece = os.read(fd, count - len(data))
        if not piece:
            return None
        data += piece
    return bytes(data)


def _fields(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def _packed(value: Any) -> Iterator[bytes]:
    """MessagePack of a value (its specification, formats nil to map 32), always in the widest form of its kind."""
    if value is None or isinstance(value, bool):
        yield {None: b"\xc0", False: b"\xc2", True: b"\xc3"}[value]
    elif isinstance(value, Enum):
        yield from _packed(value.value)
    elif isinstance(value, int):
        yield struct.pack(">Bq", 0xD3, value)
    elif isinstance(value, float):
        yield struct.pack(">Bd", 0xCB, value)
    elif isinstance(value, str):
        data = value.encode()
        yield struct.pack(">BI", 0xDB, len(data)) + data
    elif isinstance(value, bytes):
        yield struct.pack(">BI", 0xC6, len(value)) + value
    elif isinstance(value, Mapping):
        yield struct.pack(">BI", 0xDF, len(value))
        for key, item in value.items():
            yield from _packed(key)
            yield from _packed(item)
    elif isinstance(value, tuple | list | frozenset | set):
        yield struct.pack(">BI", 0xDD, len(value))
        for item in value:
            yield from _packed(item)
    else:
        yield from _packed(_fields(value))


_NUMBERS = {0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q"} | {
    0xD0: ">b",
    0xD1: ">h",
    0xD2: ">i",
    0xD3: ">q",
}
_LENGTHS = {0xC4: ">B", 0xC5: ">H", 0xC6: ">I", 0xD9: ">B", 0xDA: ">H", 0xDB: ">I"} | {
    0xDC: ">H",
    0xDD: ">I",
    0xDE: ">H",
    0xDF: ">I",
}


class _Unpacker:
    """Reads MessagePack; arrays become tuples."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def value(self) -> Any:
        tag = self._number(">B")
        if tag < 0x80 or tag >= 0xE0:
            return tag if tag < 0x80 else tag - 0x100
        if tag in (0xC0, 0xC2, 0xC3):
            return {0xC0: None, 0xC2: False, 0xC3: True}[tag]
        if tag in _NUMBERS:
            return self._number(_NUMBERS[tag])
        if tag < 0x90:
            return self._map(tag & 0x0F)
        if tag < 0xA0:
            return self._tuple(tag & 0x0F)
        if tag < 0xC0:
            return self._bytes(tag & 0x1F).decode()
        length = self._number(_LENGTHS[tag])
        if tag in (0xC4, 0xC5, 0xC6):
            return self._bytes(length)
        if tag in (0xD9, 0xDA, 0xDB):
            return self._bytes(length).decode()
        return self._tuple(length) if tag in (0xDC, 0xDD) else self._map(length)

    def _number(self, form: str) -> Any:
        (number,) = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return number

    def _bytes(self, length: int) -> bytes:
        self._at += length
        return self._data[self._at - length : self._at]

    def _tuple(self, length: int) -> tuple[Any, ...]:
        return tuple(self.value() for _ in range(length))

    def _map(self, length: int) -> dict[str, Any]:
        return {self.value(): self.value() for _ in range(length)}
