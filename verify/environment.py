"""Facts about this machine and its libraries, for records and `doctor`. Reads, never changes anything."""

from __future__ import annotations

import importlib.metadata
import platform
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import verify
from verify.record import Environment

PACKAGES = (
    "numpy",
    "torch",
    "hypothesis",
    "pytest",
    "cupy-cuda12x",
    "cupy-cuda13x",
    "ml_dtypes",
    "python-flint",
    "nvidia-cuda-runtime",
    "nvidia-cuda-crt",
    "nvidia-cuda-nvrtc",
    "safetensors",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """One line of `doctor`."""

    subject: str
    ok: bool
    text: str
    required: bool = False
    """The harness cannot run without it."""


def installed(name: str) -> str | None:
    """Version of an installed distribution, or None."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def environment(device: str = "cpu") -> Environment:
    """The environment of this process."""
    versions = {name: version for name in PACKAGES if (version := installed(name)) is not None}
    versions["attn-verify"] = verify.__version__
    return Environment(python=platform.python_version(), platform=platform.platform(), packages=versions, device=device)


def foreign_kernels() -> str | None:
    """Path of the package that `import kernels` would find when it is not ours, else None.

    A package of that name exists on PyPI; whichever is installed later shadows the other.
    """
    spec = find_spec("kernels")
    if spec is None or spec.origin is None:
        return "nowhere"
    ours = Path(verify.__file__).resolve().parent.parent / "kernels" / "__init__.py"
    found = Path(spec.origin).resolve()
    return None if found == ours else str(found)


def diagnose() -> tuple[Diagnosis, ...]:
    """What works on this machine and what is missing, with the command that adds it."""
    foreign = foreign_kernels()
    lines = [
        Diagnosis(
            subject="kernels",
            ok=foreign is None,
            required=True,
            text="the package `kernels` is this project's" if foreign is None else _foreign_message(foreign),
        )
    ]
    for name, extra in (("torch", "torch"), ("python-flint", "certify"), ("safetensors", "report"), ("pytest", "test")):
        version = installed(name)
        text = version or f"not installed: pip install 'attn-verify[{extra}]'"
        lines.append(Diagnosis(subject=name, ok=version is not None, text=text))
    lines.append(diagnose_gpu())
    return tuple(lines)


def check_packages() -> None:
    """Stop at start-up when `kernels` is somebody else's package.

    Raises
    ------
    ImportError
        With the path found and what to do.
    """
    foreign = foreign_kernels()
    if foreign is not None:
        raise ImportError(_foreign_message(foreign))


def _foreign_message(path: str) -> str:
    return f"kernels={path!r}: expected this project's package; install attn-verify in an environment of its own"


def diagnose_gpu() -> Diagnosis:
    """Whether CuPy sees a GPU. Imports CuPy, which takes a few tenths of a second."""
    if find_spec("cupy") is None:
        return Diagnosis(subject="GPU", ok=False, text="CuPy not installed: pip install 'attn-verify[cuda13]'")
    import cupy

    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return Diagnosis(subject="GPU", ok=False, text=f"none ({str(error).splitlines()[0]})")
    return Diagnosis(subject="GPU", ok=count > 0, text=f"{count} CUDA device(s), CuPy {cupy.__version__}")
