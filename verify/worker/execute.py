"""Runs one call of a candidate inside the current process and names every way in which it can end, short of dying.

Shared by the worker and by the session without one, so that both give the same statuses. Global state that the
candidate changed (NumPy's error handling, patched functions, default dtype, working directory) is put back and noted.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from verify.candidate import Array, Call, Candidate, KernelFaultError, RefusedError, Reply, Route
from verify.candidates.device_streams import settled
from verify.candidates.user import UserCodeError
from verify.errors import UsageError
from verify.verdict import Status
from verify.worker.protocol import BAD_ROUTE, MAX_TEXT, may_be_claimed, route_spec
from verify.worker.shared_arrays import DTYPES, is_transportable

OWN_FOLDER = str(Path(__file__).parent)
_OWN_FOLDERS = (OWN_FOLDER, str(Path(__file__).parents[1] / "candidates" / "user"))
_WATCHED = (("numpy", "allclose"), ("numpy", "isclose"), ("numpy", "array_equal"), ("torch", "allclose"))
# errors of libraries that need not be installed, or of rooms that are not imported here, by class name
_BY_CLASS_NAME = {
    "OutOfMemoryError": Status.OUT_OF_MEMORY,
    "CompileError": Status.COMPILE_ERROR,
    "CompileException": Status.COMPILE_ERROR,
    "CompilationError": Status.COMPILE_ERROR,
    "NvrtcError": Status.COMPILE_ERROR,
}
_ABSENT = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """How one call ended inside the process that ran it."""

    status: Status
    """PASS = it returned a Reply; what the Reply holds is not judged here."""
    reply: Reply | None = None
    message: str = ""
    traceback: str = ""
    notes: tuple[str, ...] = ()


class BadReplyError(Exception):
    """What the candidate returned is no reply that a check could look at."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status = status


def execute(candidate: Candidate, call: Call, catch: tuple[type[BaseException], ...]) -> Answer:
    """Run one call; exceptions of the kinds in `catch` become answers."""
    before = _global_state()
    try:
        reply = _checked(candidate.run(call))
        answer = Answer(status=Status.PASS, reply=settled(reply) if call.probe_order else reply)
    except catch as error:
        answer = describe(error)
    return replace(answer, notes=_restore(before))


def describe(error: BaseException) -> Answer:
    """Status, one-line message and traceback of an exception that a candidate raised."""
    if isinstance(error, BadReplyError):
        return Answer(status=error.status, message=str(error))
    if isinstance(error, UserCodeError):
        return replace(describe(error.error), traceback=_encodable(error.text)[-MAX_TEXT:])
    if isinstance(error, UsageError):
        return Answer(status=Status.LAUNCH_ERROR, message=_one_line(_encodable(str(error))))
    if isinstance(error, MemoryError):
        traceback.clear_frames(error.__traceback__)  # the frames hold the memory that the report needs
    frames = traceback.TracebackException(type(error), error, _candidate_frames(error.__traceback__))
    lines = "".join(frames.format_exception_only()).strip().splitlines() or [type(error).__name__]
    message = str(error) if isinstance(error, RefusedError | KernelFaultError) else lines[-1]
    if isinstance(error, SystemExit):
        message = f"tried to exit: {message}"
    text = _encodable("".join(frames.format()))[-MAX_TEXT:]
    return Answer(status=_status_of(error), message=_one_line(_encodable(message)), traceback=text)


def _status_of(error: BaseException) -> Status:
    if isinstance(error, RefusedError):
        return Status.REFUSED
    if isinstance(error, KernelFaultError) and may_be_claimed(error.status):
        return error.status
    if isinstance(error, MemoryError):
        return Status.OUT_OF_MEMORY
    for kind in type(error).__mro__:
        if kind.__name__ in _BY_CLASS_NAME:
            return _BY_CLASS_NAME[kind.__name__]
    return Status.CRASH if isinstance(error, SystemExit) else Status.LAUNCH_ERROR


def _one_line(text: str) -> str:
    return " ".join(text.split())[:2000]


def _encodable(text: str) -> str:
    """The text without lone surrogates, which no UTF-8 can carry."""
    return text.encode(errors="backslashreplace").decode()


def _candidate_frames(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the candidate's first frame on."""
    first = trace
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OWN_FOLDERS):
        trace = trace.tb_next
    return trace or first


def _checked(reply: object) -> Reply:
    """The reply with plain arrays as outputs; BadReplyError when it is none."""
    if not isinstance(reply, Reply):
        raise BadReplyError(Status.LAUNCH_ERROR, f"returned a {type(reply).__name__}: expected a Reply")
    claimed: object = reply.outputs
    if not isinstance(claimed, Mapping):
        kind = type(claimed).__name__
        raise BadReplyError(Status.LAUNCH_ERROR, f"returned outputs as {kind}: expected a mapping of arrays")
    outputs = {name: _checked_output(name, array) for name, array in claimed.items()}
    return Reply(outputs=outputs, route=_checked_route(reply.route))


def _checked_output(name: object, array: object) -> Array:
    if not isinstance(name, str) or not name.isprintable() or not 1 <= len(name) <= 64:
        raise BadReplyError(Status.LAUNCH_ERROR, f"returned an output named {name!r:.80}: expected a short string")
    if not isinstance(array, np.ndarray):
        kind = type(array).__name__
        raise BadReplyError(Status.LAUNCH_ERROR, f"returned output {name!r} as {kind}: expected a NumPy array")
    plain = np.asarray(array)
    if not is_transportable(plain):
        expected = "one of " + ", ".join(DTYPES)
        raise BadReplyError(Status.DTYPE, f"returned output {name!r} of dtype {array.dtype}: expected {expected}")
    return plain


def _checked_route(route: object) -> Route:
    if not isinstance(route, Route):
        raise BadReplyError(Status.LAUNCH_ERROR, f"returned a route of type {type(route).__name__}: expected a Route")
    try:
        return route_spec(route).to_route()
    except BAD_ROUTE as error:
        raise BadReplyError(Status.LAUNCH_ERROR, f"returned a malformed route: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    """One piece of global state: its name, its value and how to set it."""

    name: str
    value: object
    put: Callable[[Any], object]


def _global_state() -> list[_Setting]:
    settings = [
        _Setting(name="numpy error handling", value=np.geterr(), put=lambda value: np.seterr(**value)),
        _Setting(name="working directory", value=_directory(), put=_change_directory),
    ]
    for module_name, name in _WATCHED:
        module = sys.modules.get(module_name)
        if module is not None:
            settings.append(_attribute(module, module_name, name))
    torch = sys.modules.get("torch")
    if torch is not None:
        dtype = torch.get_default_dtype()
        settings.append(_Setting(name="torch default dtype", value=dtype, put=torch.set_default_dtype))
    return settings


def _attribute(module: object, module_name: str, name: str) -> _Setting:
    return _Setting(
        name=f"{module_name}.{name}",
        value=getattr(module, name, _ABSENT),
        put=lambda value: setattr(module, name, value),
    )


def _restore(before: list[_Setting]) -> tuple[str, ...]:
    """Put back what differs from before and say what it was."""
    now = {setting.name: setting.value for setting in _global_state()}
    changed = [setting for setting in before if _differs(setting.value, now.get(setting.name))]
    for setting in changed:
        setting.put(setting.value)
    return tuple(f"changed {setting.name}" for setting in changed)


def _differs(before: object, after: object) -> bool:
    # types first: what was put in the place of a function may not even compare
    return type(before) is not type(after) or before != after


def _directory() -> str | None:
    try:
        return os.getcwd()  # noqa: PTH109 - a string costs a system call, a Path ten times that
    except FileNotFoundError:
        return None


def _change_directory(path: str | None) -> None:
    if path is not None:
        os.chdir(path)
