"""Description of a user's CUDA source: entry points, geometry and the order of arguments. Compiles and runs nothing.

Geometry is text over the sizes of the problem: `ceil_div(seqlen_q, 16)`. The same description reads from TOML.
"""

from __future__ import annotations

import ast
import operator
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verify.contract import Arithmetic, Contract
from verify.errors import UsageError, require
from verify.problem import AttentionProblem
from verify.registration.presets import arithmetic_of, capabilities_of

Size = int | str
SIZES = ("batch", "seqlen_q", "seqlen_k", "nheads", "nheads_kv", "head_dim", "head_dim_v")
FLAGS = ("causal", "top_left", "window_left", "window_right")
"""Passed as int32 like the sizes; a window side is -1 where it is unbounded."""
FLOATS = ("softmax_scale", "softcap")
INPUTS = ("q", "k", "v", "dout", "mask", "bias", "alibi_slopes", "sink")
OUTPUTS = ("out", "lse", "dq", "dk", "dv", "dbias", "dsink")
_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
_FUNCTIONS: Mapping[str, Callable[[int, int], int]] = {"ceil_div": lambda a, b: -(-a // b), "max": max, "min": min}


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One kernel launch."""

    entry: str
    """Name of an `extern "C" __global__` function."""
    grid: tuple[Size, ...]
    block: tuple[Size, ...]
    args: tuple[str, ...]
    """What it is given, in order: inputs, outputs, workspaces (pointers), sizes and flags (int32), floats (fp32)."""
    shared_bytes: Size = 0

    @staticmethod
    def of(values: Mapping[str, Any]) -> Launch:
        """From a table; UsageError for an unknown or missing key."""
        try:
            sized = {name: _sizes(values[name]) for name in ("grid", "block")}
            return Launch(**{**values, **sized, "args": tuple(values["args"])})
        except (TypeError, KeyError) as error:
            keys = "entry, grid, block, args and perhaps shared_bytes"
            raise UsageError(f"launch={sorted(values)}: expected the keys {keys}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaSource:
    """A CUDA C++ source with its launches; inputs and outputs are contiguous, (batch, seqlen, nheads, head_dim).

    Raises
    ------
    UsageError
        For an argument that the harness does not know.
    """

    source: str | Path
    """Text of the source, or the path of a .cu file."""
    forward: Sequence[Launch]
    backward: Sequence[Launch] = ()
    workspaces: Mapping[str, Size] = field(default_factory=dict)
    """Name -> number of fp32 elements, zero before the forward and before the backward."""
    defines: Mapping[str, Size] = field(default_factory=dict)
    """Macros by name; text is a size of the problem, and each value is a build of its own."""
    dtypes: Sequence[str] = ("fp32",)
    features: Sequence[str] = ()
    arithmetic: str | Arithmetic | Mapping[str, Arithmetic] = "fused"
    checked: bool = False
    """On the CPU: report races, accesses out of bounds and uninitialised reads."""
    capabilities: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known = {*INPUTS, *OUTPUTS, *SIZES, *FLAGS, *FLOATS, *self.workspaces}
        for launch in (*self.forward, *self.backward):
            unknown = [name for name in launch.args if name not in known]
            require(not unknown, f"args of {launch.entry}", unknown, "names out of " + ", ".join(sorted(known)))

    @property
    def outputs(self) -> tuple[str, ...]:
        """Outputs that its launches are given."""
        given = [name for launch in self.forward for name in launch.args if name in ("out", "lse")]
        given += [name for launch in self.backward for name in launch.args if name in OUTPUTS[2:]]
        return tuple(dict.fromkeys(given))

    def contract(self) -> Contract:
        """Contract of the description."""
        dtypes = tuple(self.dtypes)
        able = capabilities_of(dtypes, frozenset(self.features), self.outputs, self.capabilities)
        return Contract(capabilities=able, arithmetic=arithmetic_of(self.arithmetic, dtypes, autograd=False))


def read_description(path: Path) -> CudaSource:
    """The description in a TOML file; a relative `source` is taken from the file's folder.

    Raises
    ------
    UsageError
        Not readable, not TOML, or a wrong key.
    """
    try:
        values = tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"candidate={str(path)!r}: expected a TOML launch description ({error})") from error
    for direction in ("forward", "backward"):
        values[direction] = tuple(Launch.of(table) for table in values.get(direction, ()))
    require("source" in values and values["forward"], str(path), sorted(values), "a key source and a table [[forward]]")
    values["source"] = path.parent / values["source"]
    try:
        return CudaSource(**values)
    except TypeError as error:
        raise UsageError(f"{path}={sorted(values)}: expected the fields of verify.CudaSource") from error


def size_names(p: AttentionProblem) -> dict[str, int]:
    """Values of the sizes and flags of a problem."""
    sizes = {name: int(getattr(p, name)) for name in SIZES}
    left, right = p.window or (None, None)
    return sizes | {
        "causal": int(p.causal),
        "top_left": int(p.alignment == "top_left"),
        "window_left": -1 if left is None else left,
        "window_right": -1 if right is None else right,
    }


def evaluate(size: Size, names: Mapping[str, int]) -> int:
    """Value of a size: a number, or text over names with + - * // ceil_div max min."""
    if isinstance(size, int):
        return size
    try:
        return _value(ast.parse(size, mode="eval").body, names)
    except (SyntaxError, KeyError, ZeroDivisionError) as error:
        known = ", ".join(sorted(names))
        raise UsageError(f"size={size!r}: expected + - * // ceil_div max min over numbers and {known}") from error


def _value(node: ast.expr, names: Mapping[str, int]) -> int:
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.Name(id=name):
            return names[name]
        case ast.BinOp(left=left, op=kind, right=right):
            return _OPERATORS[type(kind)](_value(left, names), _value(right, names))
        case ast.Call(func=ast.Name(id=name), args=[first, second], keywords=[]):
            return _FUNCTIONS[name](_value(first, names), _value(second, names))
    raise KeyError(ast.unparse(node))


def _sizes(given: Size | Sequence[Size]) -> tuple[Size, ...]:
    return (given,) if isinstance(given, int | str) else tuple(given)
