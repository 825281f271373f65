"""Messages between a session and its worker, and their framing. Pure data: no process, no array and no candidate here.

A frame is a magic word that carries the version, the length of the body and a msgpack body. The parent trusts nothing
that it reads: unknown fields, wrong types, over-long lists and a nonce that is not this call's are refused. A forged
reply gains nothing beyond what returning the same arrays would: every judgement is made in the parent.
"""

from __future__ import annotations

import os
import signal
import struct
from typing import Annotated

import msgspec
from msgspec import Meta

from verify.candidate import Route
from verify.contract import Contract
from verify.errors import UsageError
from verify.problem import AttentionProblem
from verify.verdict import Status

MAGIC = b"AVW1"
"""First bytes of a frame; the digit is the protocol version."""
MAX_BODY_BYTES = 16 << 20
"""Above any honest message (tracebacks are cut to MAX_TEXT), below what would hurt the parent."""
MAX_TEXT = 64 << 10
"""Characters of a traceback or of captured output that are kept."""
DESCRIPTORS = ("request", "reply", "inputs", "outputs", "stack")
"""What a worker inherits: two pipes and three memories."""
DUMP_SIGNAL = signal.SIGUSR1
"""Makes a worker write its Python stack, even while C code holds the interpreter lock."""
_HEADER = struct.Struct("<4sI")

Text = Annotated[str, Meta(max_length=MAX_TEXT)]
Name = Annotated[str, Meta(min_length=1, max_length=64)]
Size = Annotated[int, Meta(ge=0, le=2**62)]
Shape = Annotated[tuple[Size, ...], Meta(max_length=32)]
Nonce = Annotated[bytes, Meta(min_length=16, max_length=16)]
Notes = Annotated[tuple[Text, ...], Meta(max_length=64)]


class ProtocolError(Exception):
    """The other side broke the protocol; the message is one line."""


class InputSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where one input lies in the shared input arena."""

    name: Name
    dtype: Name
    shape: Shape
    strides: tuple[int, ...]
    """Bytes; 0 and negative ones included, as in the caller's array."""
    offset: Size
    """Byte of the arena that holds element 0."""
    writeable: bool


class OutputSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One C-contiguous output in the shared output arena."""

    name: Name
    dtype: Name
    shape: Shape
    offset: Size


class Start(msgspec.Struct, tag="start", frozen=True, kw_only=True, forbid_unknown_fields=True):
    """First message to a worker: which candidate to load."""

    nonce: Nonce
    loader: str
    memory_limit_bytes: int | None
    describe: bool = False
    """Ready shall carry the candidate's declaration."""


class Request(msgspec.Struct, tag="call", frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One call; the arrays themselves lie in the input arena."""

    nonce: Nonce
    problem: AttentionProblem
    inputs: tuple[InputSpec, ...]
    input_bytes: Size
    """Bytes of the input arena in use."""
    output_limit_bytes: Size
    """Most that the outputs may take together."""
    backward: bool
    with_dlse: bool
    seed: int
    probe_order: bool = False
    prefill: Name = "nan"
    splits: int = 0


class Described(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a candidate declares about itself."""

    name: Text
    contract: Contract
    unavailable: Text
    """Why it cannot run there; empty when it can."""
    sources: Annotated[tuple[Text, ...], Meta(max_length=4096)]
    """Files that hold it."""


class Ready(msgspec.Struct, tag="ready", frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The candidate is loaded."""

    nonce: Nonce
    described: Described | None = None


class RouteSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """verify.candidate.Route on the wire, where an unknown field is refused and texts are bounded."""

    backend: Text
    asked: Text
    fallback_reason: Text
    details: Annotated[dict[Name, Text], Meta(max_length=256)]

    def to_route(self) -> Route:
        return Route(backend=self.backend, asked=self.asked, fallback_reason=self.fallback_reason, details=self.details)


class Ran(msgspec.Struct, tag="ran", frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The candidate returned; whether the values are right is for the parent to say."""

    nonce: Nonce
    outputs: Annotated[tuple[OutputSpec, ...], Meta(max_length=64)]
    route: RouteSpec
    notes: Notes


class Failed(msgspec.Struct, tag="failed", frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The candidate raised, or returned something that is no reply."""

    nonce: Nonce
    status: Status
    message: Text
    traceback: Text
    notes: Notes
    lost_device: Text
    """Why the worker's GPU context is of no more use; empty when it is well or when there is none."""


BAD_ROUTE = (msgspec.ValidationError, TypeError, UnicodeEncodeError)
"""What `route_spec` raises for a route whose fields have wrong types."""


def route_spec(route: Route) -> RouteSpec:
    """The route as it is sent; one of BAD_ROUTE for fields of a wrong kind."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(route), type=RouteSpec)


ToChild = Start | Request
ToParent = Ready | Ran | Failed
_encoder = msgspec.msgpack.Encoder()
_to_child: msgspec.msgpack.Decoder[ToChild] = msgspec.msgpack.Decoder(ToChild)
_to_parent: msgspec.msgpack.Decoder[ToParent] = msgspec.msgpack.Decoder(ToParent)


def encode_frame(message: ToChild | ToParent) -> bytes:
    """Header and body of one message."""
    body = _encoder.encode(message)
    return _HEADER.pack(MAGIC, len(body)) + body


def decode_reply(body: bytes, nonce: bytes) -> ToParent:
    """Reply to the call of that nonce; ProtocolError for anything else."""
    try:
        reply = _to_parent.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, UsageError) as error:
        raise ProtocolError(f"sent a malformed reply: {error}") from error
    if reply.nonce != nonce:
        raise ProtocolError("sent a stale or forged reply: its nonce is not that of this call")
    if isinstance(reply, Failed) and not may_be_claimed(reply.status):
        raise ProtocolError(f"sent a malformed reply: a failure with status {reply.status}")
    return reply


def may_be_claimed(status: Status) -> bool:
    """Whether a candidate may report that of itself: a failure, and none that only a comparison can find."""
    judged = (Status.NUMERICAL, Status.MUTATED_INPUT, Status.REFERENCE_DISAGREES)
    return status.is_failure and status not in judged


class FrameBuffer:
    """Collects bytes until one whole frame is there; refuses a bad header as soon as it shows."""

    def __init__(self) -> None:
        self._data = bytearray()

    @property
    def surplus(self) -> int:
        """Bytes that no frame has taken."""
        return len(self._data)

    def feed(self, data: bytes) -> bytes | None:
        """Body of the frame once complete, else None; ProtocolError for a bad magic word or length."""
        self._data += data
        if not MAGIC.startswith(self._data[: len(MAGIC)]):
            raise ProtocolError(f"wrote foreign bytes to the reply channel: {bytes(self._data[:16])!r}")
        if len(self._data) < _HEADER.size:
            return None
        length = _HEADER.unpack_from(self._data)[1]
        if length > MAX_BODY_BYTES:
            raise ProtocolError(f"announced a reply of {length} bytes, at most {MAX_BODY_BYTES} are allowed")
        end = _HEADER.size + length
        if len(self._data) < end:
            return None
        body = bytes(self._data[_HEADER.size : end])
        del self._data[:end]
        return body


def read_request(fd: int) -> ToChild | None:
    """Next message to the worker (blocking), or None when the parent closed the pipe."""
    header = _read_exactly(fd, _HEADER.size)
    if header is None:
        return None
    body = _read_exactly(fd, _HEADER.unpack(header)[1])
    return None if body is None else _to_child.decode(body)


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
