"""The runtime's C structures, field by field as in runtime/state.h."""

from __future__ import annotations

import ctypes


class Index3(ctypes.Structure):
    """Index or extent (x, y, z)."""

    _fields_ = [("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint)]

    def as_tuple(self) -> tuple[int, int, int]:
        """(x, y, z)."""
        return self.x, self.y, self.z


class SiteRecord(ctypes.Structure):
    """A source position: file and line, or an instruction address."""

    _fields_ = [("file", ctypes.c_char_p), ("line", ctypes.c_int), ("pc", ctypes.c_size_t)]


class FaultRecord(ctypes.Structure):
    """One fault as the runtime writes it."""

    _fields_ = [
        ("kind", ctypes.c_int),
        ("buffer", ctypes.c_int),
        ("offset", ctypes.c_long),
        ("block", Index3),
        ("thread", Index3),
        ("site", SiteRecord),
        ("other", SiteRecord),
        ("message", ctypes.c_char * 256),
    ]


class BufferRecord(ctypes.Structure):
    """One registered buffer."""

    _fields_ = [
        ("base", ctypes.c_void_p),
        ("bytes", ctypes.c_size_t),
        ("writable", ctypes.c_int),
        ("initialised", ctypes.c_int),
    ]


class LaunchRecord(ctypes.Structure):
    """Everything about one launch."""

    _fields_ = [
        ("entry", ctypes.c_void_p),
        ("arguments", ctypes.c_void_p),
        ("grid", Index3),
        ("block", Index3),
        ("shared_bytes", ctypes.c_uint),
        ("policy", ctypes.c_int),
        ("mma", ctypes.c_int),
        ("checks", ctypes.c_int),
        ("buffer_count", ctypes.c_int),
        ("seed", ctypes.c_uint64),
        ("time_limit_s", ctypes.c_double),
        ("buffers", ctypes.c_void_p),
        ("faults", ctypes.c_void_p),
        ("fault_count", ctypes.c_int),
        ("accesses", ctypes.c_uint64),
    ]


def check_record_sizes(runtime: ctypes.CDLL) -> None:
    """Refuse a runtime whose structures differ from these."""
    for which, record in enumerate((LaunchRecord, FaultRecord, BufferRecord)):
        if runtime.simt_record_sizes(which) != ctypes.sizeof(record):
            raise RuntimeError(
                f"{record.__name__} has {ctypes.sizeof(record)} bytes here, "
                f"{runtime.simt_record_sizes(which)} in the runtime"
            )


def max_faults(runtime: ctypes.CDLL) -> int:
    """Room for faults that the runtime expects."""
    return int(runtime.simt_record_sizes(3))


def shared_limit_bytes(runtime: ctypes.CDLL) -> int:
    """Most dynamic shared memory that a block may have."""
    return int(runtime.simt_record_sizes(4))
