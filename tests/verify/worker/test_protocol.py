"""The parent takes well-formed replies to its own call and nothing else."""

from __future__ import annotations

import os
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verify.worker.protocol import (
    Failed,
    FrameBuffer,
    OutputSpec,
    ProtocolError,
    Ran,
    RouteSpec,
    ToParent,
    decode_reply,
    encode_frame,
)
from verify.worker.shared_arrays import Arena, create_memory, read_outputs, write_outputs

NONCE = bytes(range(16))
SPEC = OutputSpec(name="out", dtype="float32", shape=(2, 3), offset=256)
ROUTE = RouteSpec(backend="numpy", asked="", fallback_reason="", details={"tile": "16"})
RAN = Ran(nonce=NONCE, outputs=(SPEC,), route=ROUTE, notes=("changed numpy.allclose",))
FAILED = Failed(nonce=NONCE, status="REFUSED", message="why", traceback="", notes=(), lost_device="")


def body_of(message: ToParent) -> bytes:
    return encode_frame(message)[8:]


@pytest.mark.parametrize("message", [RAN, FAILED], ids=["ran", "failed"])
@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_frame_arrives_whole_in_any_pieces(message: ToParent, step: int) -> None:
    frame, buffer = encode_frame(message), FrameBuffer()
    pieces = [buffer.feed(frame[start : start + step]) for start in range(0, len(frame), step)]
    assert pieces[:-1] == [None] * (len(pieces) - 1)
    assert decode_reply(pieces[-1] or b"", NONCE) == message
    assert buffer.surplus == 0


@given(position=st.integers(0, len(body_of(RAN)) - 1), flip=st.integers(1, 255))
def test_changed_byte_is_refused_or_still_well_formed(position: int, flip: int) -> None:
    body = bytearray(body_of(RAN))
    body[position] ^= flip
    try:
        reply = decode_reply(bytes(body), NONCE)
    except ProtocolError:
        return
    assert reply.nonce == NONCE
    assert reply != RAN


@given(st.binary(max_size=200))
def test_noise_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_reply(data, NONCE)


def test_reply_to_another_call_is_refused() -> None:
    with pytest.raises(ProtocolError, match="stale or forged"):
        decode_reply(body_of(RAN), bytes(16))


@pytest.mark.parametrize(
    "change",
    [
        {"extra": 1},
        {"notes": ["x"] * 65},
        {"nonce": b"short"},
        {"outputs": [{"name": "out", "dtype": "float32", "shape": [-1], "offset": 0}]},
        {"outputs": [{"name": "", "dtype": "float32", "shape": [1], "offset": 0}]},
        {"route": {"backend": 3}},
        {"type": "call"},
    ],
    ids=str,
)
def test_malformed_field_is_refused(change: dict[str, Any]) -> None:
    fields = msgspec.msgpack.decode(body_of(RAN)) | change
    with pytest.raises(ProtocolError, match="malformed"):
        decode_reply(msgspec.msgpack.encode(fields), NONCE)


@pytest.mark.parametrize("status", ["PASS", "POWERLESS", "UNSUPPORTED", "NUMERICAL", "REFERENCE_DISAGREES", "odd"])
def test_failure_claims_no_pass_and_no_judgement(status: str) -> None:
    fields = msgspec.msgpack.decode(body_of(FAILED)) | {"status": status}
    with pytest.raises(ProtocolError, match="malformed"):
        decode_reply(msgspec.msgpack.encode(fields), NONCE)


@pytest.mark.parametrize(
    ("claim", "reason"),
    [
        ({"offset": 1 << 40}, "are there"),
        ({"shape": (1 << 40,)}, "at most"),
        ({"shape": (0, 1 << 40, 1 << 40)}, "at most"),
        ({"dtype": "object"}, "unknown dtype"),
        ({"name": "lse"}, "twice"),
    ],
)
def test_claim_that_memory_does_not_bear_out_is_refused(claim: dict[str, Any], reason: str) -> None:
    fd = create_memory("test")
    written = write_outputs({"lse": np.zeros(8), "out": np.zeros((2, 3), np.float32)}, Arena(fd))
    forged = (written[0], msgspec.structs.replace(written[1], **claim))
    with pytest.raises(ProtocolError, match=reason):
        read_outputs(forged, Arena(fd, may_grow=False, writeable=False), limit_bytes=4096)
    os.close(fd)


def test_memory_cannot_shrink() -> None:
    fd = create_memory("test")
    Arena(fd).ensure(8192)
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 4096)
    os.close(fd)
