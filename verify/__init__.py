"""Judge attention kernels against an fp64 reference and bounds derived from their declared arithmetic.

For users' files: `verify.register` declares a function as a candidate, `verify.capture` records a model's attention.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"
_LAZY = {
    "register": "verify.registration",
    "CudaSource": "verify.registration",
    "Launch": "verify.registration",
    "capture": "verify.capturing",
}


def __getattr__(name: str) -> Any:
    """The public functions, imported at their first use: `import verify` alone stays cheap."""
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'verify' has no attribute {name!r}")
