"""Data flows one way: which room may import which, checked on the syntax tree."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("references", "kernels", "verify")

LAYERS = (
    ("__init__", "errors"),
    ("dtypes",),
    ("problem",),
    ("case",),
    ("contract", "layouts", "capture_file"),
    ("recipes",),
    ("extras",),
    ("inputs",),
    ("grid",),
    ("strategies",),
    ("verdict",),
    ("candidate",),
    ("registration", "capturing"),
    ("candidates",),
    ("worker",),
    ("dense",),
    ("oracle",),
    ("tolerance", "metrics", "patterns"),
    ("compare",),
    ("checks", "record", "explain", "known"),
    ("journal", "environment", "terminal"),
    ("summary_json",),
    ("runner", "report"),
    ("detection",),
    ("fuzz",),
    ("commands", "conformance"),
    ("plugin", "cli"),
    ("__main__",),
)
"""Rooms of `verify`, lowest first; a module imports only from lower layers or from its own room."""

RANKS = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
IO_MODULES = ("subprocess", "socket", "tempfile", "multiprocessing", "shutil")
MAY_DO_IO = (
    "worker", "runner", "report", "detection", "fuzz", "plugin", "cli",
    "commands", "journal", "environment", "capture_file",
)  # fmt: skip


def _sources() -> list[Path]:
    return sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))


def _imports(path: Path) -> list[str]:
    tree = ast.parse(path.read_text())
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            module = node.module or ""
            found += [f"{module}.{alias.name}" for alias in node.names] if module == "verify" else [module]
    return found


def _room(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[1] if parts[0] == "verify" and len(parts) > 1 else parts[0]


@pytest.mark.parametrize("path", _sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_follow_the_layers(path: Path) -> None:
    top = path.relative_to(ROOT).parts[0]
    for name in _imports(path):
        package, _, rest = name.partition(".")
        if package not in ROOMS:
            continue
        if top != "verify":
            assert package == top, f"{top} imports {name}"
        elif package == "verify" and rest.split(".")[0] in RANKS:
            target, own = rest.split(".")[0], _room(path)
            assert target == own or RANKS[target] < RANKS[own], f"{own} imports {name}"
        elif top == "verify" and package == "kernels":
            assert _room(path) in ("candidates", "detection", "bench", "commands"), f"{_room(path)} imports {name}"


@pytest.mark.parametrize("path", _sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_only_the_outer_rooms_do_io(path: Path) -> None:
    if path.relative_to(ROOT).parts[0] == "verify" and _room(path) not in MAY_DO_IO:
        used = [name for name in _imports(path) if name.partition(".")[0] in IO_MODULES]
        assert not used, f"{_room(path)} imports {used}"


def test_every_room_of_verify_has_a_layer() -> None:
    rooms = {_room(path) for path in _sources() if path.relative_to(ROOT).parts[0] == "verify"}
    assert rooms <= set(RANKS), sorted(rooms - set(RANKS))
