"""Memory that a kernel may touch: registered buffers, and arrays that end at an inaccessible page."""

from __future__ import annotations

import ctypes
import dataclasses
import mmap
import weakref

import numpy as np
import numpy.typing as npt

PAGE_BYTES = mmap.PAGESIZE
ALIGNMENT_BYTES = 16
"""Alignment of guarded arrays: the widest vector access of a kernel."""
POISON = 0xFF
"""Byte that fills slack and, unless asked otherwise, the array: a NaN in fp16, bf16, fp32 and fp64."""


@dataclasses.dataclass(frozen=True, slots=True)
class Buffer:
    """Global memory that a launch may touch."""

    name: str
    address: int
    nbytes: int
    writable: bool
    initialised: bool
    """Whether reading it before the kernel has written it is allowed."""
    owner: object = dataclasses.field(default=None, repr=False, compare=False)
    """Whatever has to stay alive for the memory to be there."""


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class _GuardedMemory:
    """Pages between two inaccessible pages; unmapped with the last array that refers to them."""

    def __init__(self, nbytes: int, *, align_end: bool) -> None:
        self.pages_bytes = -(-max(nbytes, 1) // PAGE_BYTES) * PAGE_BYTES
        total = self.pages_bytes + 2 * PAGE_BYTES
        start = _libc.mmap(None, total, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        if start in (None, ctypes.c_void_p(-1).value):
            raise MemoryError(f"cannot map {total} bytes")
        self.first: int = start + PAGE_BYTES
        for guard in (start, self.first + self.pages_bytes):
            _libc.mprotect(guard, PAGE_BYTES, 0)
        padded = -(-nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self.address: int = self.first + (self.pages_bytes - padded if align_end else 0)
        self.nbytes = nbytes
        ctypes.memset(self.first, POISON, self.pages_bytes)
        weakref.finalize(self, _libc.munmap, start, total)

    def take_overwritten_slack(self) -> int | None:
        """Offset (from the start of the array) of the first byte of slack that lost its poison, which is put back."""
        before = self.address - self.first
        slack = {-before: before, self.nbytes: self.pages_bytes - before - self.nbytes}
        for offset, length in slack.items():
            content = ctypes.string_at(self.address + offset, length)
            if content != bytes([POISON]) * length:
                ctypes.memset(self.address + offset, POISON, length)
                return offset + next(index for index, byte in enumerate(content) if byte != POISON)
        return None


def overwritten_slack(buffer: Buffer) -> int | None:
    """Byte offset of a write just outside of a guarded array that no guard page caught, ``None`` if there is none."""
    return buffer.owner.take_overwritten_slack() if isinstance(buffer.owner, _GuardedMemory) else None


def guarded_array(
    shape: tuple[int, ...],
    dtype: npt.DTypeLike,
    *,
    name: str = "buffer",
    align_end: bool = True,
    fill: npt.ArrayLike | None = None,
    writable: bool = True,
) -> tuple[np.ndarray, Buffer]:
    """Array whose end (or start) touches an inaccessible page, and its registration.

    Parameters
    ----------
    shape, dtype
        Of the array, C order.
    name
        Name in fault reports.
    align_end
        Whether the end touches the page: an index past the end then faults once it is past the next multiple of 16
        bytes. Otherwise the start does.
    fill
        Values copied in, broadcast to `shape`. Default: every byte 0xFF, a NaN, and the buffer counts as uninitialised.
    writable
        Whether the kernel may write it (the array stays writable for Python).
    """
    item = np.dtype(dtype)
    nbytes = int(np.prod(shape, dtype=np.int64)) * item.itemsize
    memory = _GuardedMemory(nbytes, align_end=align_end)
    raw = (ctypes.c_char * nbytes).from_address(memory.address)
    raw._guarded_memory = memory  # type: ignore[attr-defined]  # keeps the mapping alive as long as the array
    array: np.ndarray = np.ndarray(shape, item, buffer=memoryview(raw))
    if fill is not None:
        array[...] = fill
    return array, Buffer(name, memory.address, nbytes, writable, fill is not None, owner=memory)
