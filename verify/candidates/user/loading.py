"""Finds what a user named: `file.py::function`, `package.module:attribute`, `kernel.toml`, or an entry point.

Runs the user's module, so it belongs in the candidate's own process; errors there are told with the user's frames.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from verify.candidate import Candidate
from verify.candidates.user.function import FunctionCandidate
from verify.errors import UsageError, require
from verify.registration import CudaSource, declaration_of, renamed

ENTRY_POINT_GROUP = "attn_verify.candidates"
FILE_SEPARATOR = "::"
LAUNCH_SUFFIX = ".toml"
_OWN_FOLDER = str(Path(__file__).parents[2])
_ANYTHING = (Exception, SystemExit)
"""What the code of a user's module may raise while it is imported."""


class UserCodeError(UsageError):
    """The user's module failed while it was loaded; the message holds the user's own traceback."""

    def __init__(self, name: str, error: BaseException) -> None:
        trace = _user_frames(error.__traceback__)
        self.error = error
        self.text = "".join(traceback.format_exception(type(error), error, trace)).rstrip()
        super().__init__(f"candidate={name!r} could not be loaded:\n{self.text}")


def names_user_code(name: str) -> bool:
    """Whether the text names something that a user brings, judged by its form alone."""
    if FILE_SEPARATOR in name or name.endswith(LAUNCH_SUFFIX):
        return True
    module, separator, attribute = name.partition(":")
    return bool(separator and attribute.isidentifier() and _module_exists(module)) or name in _entry_points()


def load_user(name: str) -> Candidate:
    """The candidate of that name.

    Raises
    ------
    UsageError
        No such file, module or attribute, or an attribute that is neither a function nor a candidate.
    UserCodeError
        Whatever the user's module raised while it was imported.
    """
    if name.endswith(LAUNCH_SUFFIX):
        build = importlib.import_module("verify.candidates.user.cuda_source").build
        launched: Candidate = build(name)
        return launched
    if FILE_SEPARATOR in name:
        path, _, attribute = name.rpartition(FILE_SEPARATOR)
        return _as_candidate(name, _attribute(name, _imported_file(name, Path(path)), attribute))
    if ":" in name:
        module, _, attribute = name.partition(":")
        return _as_candidate(name, _attribute(name, _guarded(name, importlib.import_module, module), attribute))
    entry = _entry_points()[name]
    return _as_candidate(name, _guarded(name, entry.load))


def entry_point_names() -> tuple[str, ...]:
    """Candidates that installed packages announce."""
    return tuple(sorted(_entry_points()))


def _entry_points() -> dict[str, Any]:
    return {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}


def _module_exists(name: str) -> bool:
    """Whether the outermost package can be imported; looking for an inner module would run the package's code."""
    outermost = name.partition(".")[0]
    try:
        return bool(outermost) and importlib.util.find_spec(outermost) is not None
    except ValueError:  # a module that was put into sys.modules without a spec
        return False


def _imported_file(name: str, path: Path) -> ModuleType:
    require(path.is_file(), "candidate", name, f"a file {path}")
    module_name = f"attn_verify_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path.resolve())
    if spec is None or spec.loader is None:
        raise UsageError(f"candidate={name!r}: expected a Python file before '::'")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses and pickles of the file look themselves up
    folder = str(path.resolve().parent)
    if folder not in sys.path:  # as `python file.py` would, so that its neighbours import
        sys.path.insert(0, folder)
    _guarded(name, spec.loader.exec_module, module)
    return module


def _guarded(name: str, action: Any, *arguments: Any) -> Any:
    try:
        return action(*arguments)
    except _ANYTHING as error:
        raise UserCodeError(name, error) from None


def _user_frames(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame that is neither ours nor the import machinery's."""
    first = trace
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith((_OWN_FOLDER, "<frozen importlib")) and "/importlib/" not in file:
            return trace
        trace = trace.tb_next
    return first if first is None or first.tb_next is None else None


def _attribute(name: str, module: ModuleType, attribute: str) -> Any:
    names = ", ".join(key for key, value in vars(module).items() if callable(value) and not key.startswith("_"))
    require(hasattr(module, attribute), "candidate", name, f"one of {names or 'its attributes, it has none'}")
    return getattr(module, attribute)


def _as_candidate(name: str, found: Any) -> Candidate:
    if isinstance(found, CudaSource):
        made = importlib.import_module("verify.candidates.user.cuda_source").CudaSourceCandidate(name, found)
    else:
        made = found() if isinstance(found, type) else found
    if isinstance(made, Candidate):
        return made
    require(callable(made), "candidate", name, f"a function or a candidate, not a {type(made).__name__}")
    return FunctionCandidate(renamed(declaration_of(made), name))
