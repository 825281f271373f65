"""Arrays in memory that two processes map: bytes around a view travel with it, and it keeps strides and alignment.

Memory is a memfd passed by descriptor: it has no name to leave behind and ends with its last user. The parent seals it
against shrinking, so a worker cannot make the parent's reads fault.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

import ml_dtypes
import numpy as np

from verify.candidate import Array
from verify.errors import UsageError
from verify.worker.protocol import InputSpec, OutputSpec, ProtocolError

ALIGNMENT = 256
"""A view keeps its address modulo this many bytes: cache lines, vector loads and the CUDA allocator's promise."""
_PLAIN = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_FLOATS = ("float16", "float32", "float64", "complex64", "complex128")
_NARROW = ("bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
DTYPES = {name: np.dtype(name) for name in _PLAIN + _FLOATS}
DTYPES |= {name: np.dtype(getattr(ml_dtypes, name)) for name in _NARROW}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}  # a look-up is 20 times faster than dtype.name


def is_transportable(array: Array) -> bool:
    """Whether the dtype is a plain number of this machine's byte order (no objects, strings or records)."""
    return array.dtype in _NAMES


class Arena:
    """A block of bytes that grows: shared when it has a descriptor, private to the process otherwise."""

    def __init__(self, fd: int | None, *, may_grow: bool = True, writeable: bool = True) -> None:
        self._fd = fd
        self._may_grow = may_grow
        self._writeable = writeable
        self._map: mmap.mmap | None = None

    @property
    def size(self) -> int:
        """Bytes that are mapped."""
        return 0 if self._map is None else len(self._map)

    @property
    def buffer(self) -> mmap.mmap:
        """The mapping; only after ensure."""
        assert self._map is not None, "ensure comes first"
        return self._map

    def ensure(self, nbytes: int) -> None:
        """Map at least `nbytes`. Views of the old mapping stay valid; ProtocolError when the memory is not there."""
        if self._map is not None and nbytes <= self.size:
            return
        wanted = _round_up(max(nbytes, 1), mmap.PAGESIZE)
        if self._fd is None:
            self._map = mmap.mmap(-1, wanted)
            return
        present = os.fstat(self._fd).st_size
        if wanted > present and not self._may_grow:
            raise ProtocolError(f"claimed {nbytes} bytes of memory, {present} are there")
        if wanted > present:
            wanted = max(wanted, 2 * present)
            os.ftruncate(self._fd, wanted)
        access = mmap.ACCESS_WRITE if self._writeable else mmap.ACCESS_READ
        self._map = mmap.mmap(self._fd, wanted, access=access)


def create_memory(name: str) -> int:
    """Descriptor of fresh anonymous memory, sealed against shrinking."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return fd


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """One stretch of the caller's memory that holds the bases of one or more inputs."""

    address: int
    nbytes: int
    offset: int
    """Where it is copied to in the arena."""
    names: tuple[str, ...]
    """Inputs that lie in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputLayout:
    """Placement of all inputs of a call in an arena."""

    regions: tuple[Region, ...]
    specs: tuple[InputSpec, ...]
    nbytes: int


def layout_inputs(arrays: Mapping[str, Array]) -> InputLayout:
    """Place each base buffer once, however many views share it."""
    for name, array in arrays.items():
        if not is_transportable(array):
            raise UsageError(f"arrays[{name!r}].dtype={array.dtype}: expected one of {', '.join(DTYPES)}")
    regions: list[Region] = []
    cursor = 0
    for address, end, names in _merged_spans(arrays):
        offset = cursor + (address - cursor) % ALIGNMENT
        regions.append(Region(address=address, nbytes=end - address, offset=offset, names=names))
        cursor = offset + end - address
    home = {name: region for region in regions for name in region.names}
    specs = tuple(_spec(name, array, home[name]) for name, array in arrays.items())
    return InputLayout(regions=tuple(regions), specs=specs, nbytes=cursor)


def write_inputs(layout: InputLayout, arena: Arena) -> None:
    """Copy the base buffers, gaps included, into the arena. The arrays of the layout must still be alive."""
    arena.ensure(layout.nbytes)
    for region in layout.regions:
        np.copyto(_placed(region, arena), _memory(region.address, region.nbytes))


def changed_inputs(
    layout: InputLayout, arrays: Mapping[str, Array], arena: Arena
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(inputs whose elements differ from the caller's, inputs around which only gap bytes differ), bit by bit."""
    mutated: list[str] = []
    around: list[str] = []
    specs = {spec.name: spec for spec in layout.specs}
    for region in layout.regions:
        if np.array_equal(_placed(region, arena), _memory(region.address, region.nbytes)):
            continue
        inside = [name for name in region.names if not _same_bits(view_input(specs[name], arena), arrays[name])]
        mutated += inside
        around += [] if inside else region.names
    return tuple(mutated), tuple(around)


def view_input(spec: InputSpec, arena: Arena) -> Array:
    """The input as a view of the arena, strides as the caller's; ValueError when it does not fit."""
    view = np.ndarray(spec.shape, DTYPES[spec.dtype], arena.buffer, spec.offset, spec.strides)
    view.flags.writeable = spec.writeable
    return view


def write_outputs(outputs: Mapping[str, Array], arena: Arena) -> tuple[OutputSpec, ...]:
    """Copy outputs one after another into the arena, C-contiguous."""
    specs: list[OutputSpec] = []
    cursor = 0
    for name, array in outputs.items():
        offset = _round_up(cursor, ALIGNMENT)
        specs.append(OutputSpec(name=name, dtype=_NAMES[array.dtype], shape=array.shape, offset=offset))
        cursor = offset + array.nbytes
    arena.ensure(cursor)
    for spec, array in zip(specs, outputs.values(), strict=True):
        np.copyto(np.ndarray(spec.shape, array.dtype, arena.buffer, spec.offset), array)
    return tuple(specs)


def read_outputs(specs: tuple[OutputSpec, ...], arena: Arena, limit_bytes: int) -> dict[str, Array]:
    """Private copies of the outputs; ProtocolError for a claim that does not hold."""
    outputs: dict[str, Array] = {}
    total = 0
    for spec in specs:
        if spec.name in outputs:
            raise ProtocolError(f"sent output {spec.name!r} twice")
        if spec.dtype not in DTYPES:
            raise ProtocolError(f"sent output {spec.name!r} of unknown dtype {spec.dtype!r}")
        nbytes = prod(spec.shape) * DTYPES[spec.dtype].itemsize
        total += nbytes
        if total > limit_bytes or prod(max(extent, 1) for extent in spec.shape) > 2**62:
            raise ProtocolError(f"sent outputs of {total} bytes, at most {limit_bytes} are allowed")
        arena.ensure(spec.offset + nbytes)
        outputs[spec.name] = np.ndarray(spec.shape, DTYPES[spec.dtype], arena.buffer, spec.offset).copy()
    return outputs


class _Memory:
    """Bytes at an address, for NumPy's array interface."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__array_interface__ = {"data": (address, True), "shape": (nbytes,), "typestr": "|u1", "version": 3}


def _memory(address: int, nbytes: int) -> Array:
    return np.asarray(_Memory(address, nbytes)) if nbytes else np.empty(0, np.uint8)


def _placed(region: Region, arena: Arena) -> Array:
    return np.ndarray((region.nbytes,), np.uint8, arena.buffer, region.offset)


def _spec(name: str, array: Array, region: Region) -> InputSpec:
    return InputSpec(
        name=name,
        dtype=_NAMES[array.dtype],
        shape=array.shape,
        strides=array.strides,
        offset=region.offset + _address(array) - region.address,
        writeable=bool(array.flags.writeable),
    )


def _merged_spans(arrays: Mapping[str, Array]) -> Iterator[tuple[int, int, tuple[str, ...]]]:
    """(start, end, names) of the disjoint stretches of memory under the arrays, in order of address."""
    spans = sorted((*_owner_span(array), name) for name, array in arrays.items())
    start, end, names = 0, -1, list[str]()
    for low, high, name in spans:
        if names and low < end:
            end = max(end, high)
            names.append(name)
            continue
        if names:
            yield start, end, tuple(names)
        start, end, names = low, high, [name]
    if names:
        yield start, end, tuple(names)


def _owner_span(array: Array) -> tuple[int, int]:
    """Bytes of the array that the view comes from in the end, guards and gaps of that buffer included."""
    owner = array
    base: object = array.base
    while base is not None:
        if isinstance(base, np.ndarray):
            owner = base
        # as_strided puts a helper with a `base` of its own between a view and its source
        base = getattr(base, "base", None)
    low, high = _span(array)
    first, last = _span(owner)
    return (first, last) if first <= low and high <= last else (low, high)


def _span(array: Array) -> tuple[int, int]:
    """First byte of the elements and the first behind them."""
    low = high = _address(array)
    if array.flags.c_contiguous or not array.size:
        return low, high + array.nbytes
    for extent, stride in zip(array.shape, array.strides, strict=True):
        if stride < 0:
            low += (extent - 1) * stride
        else:
            high += (extent - 1) * stride
    return low, high + array.itemsize


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def _same_bits(left: Array, right: Array) -> bool:
    return bool(np.array_equal(_bytes_of(left), _bytes_of(right)))


def _bytes_of(array: Array) -> Array:
    return np.ascontiguousarray(array).view(np.uint8)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
