"""The one file that another interpreter needs: a zip of this project's worker, its codec in pure Python.

Held in anonymous memory and started as `python /proc/self/fd/N`: nothing is installed there and nothing is left behind.
"""

from __future__ import annotations

import functools
import io
import os
import zipfile
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
_MODULES = ("errors", "dtypes", "problem", "case", "contract", "verdict", "candidate", "capture_file")
_WORKER = ("child", "execute", "device", "shared_arrays")
_MAIN = """\
import os
import sys

# Behind the environment's own packages: a stand-in for ml_dtypes, and the folder that modules of the user lie in.
sys.path += [os.path.join(sys.path[0], "fallback"), os.getcwd()]

from verify.worker.child import main

sys.exit(main(sys.argv[1:]))
"""
_ML_DTYPES = '''\
"""Stand-in: each type is the record of its bits, enough to move arrays; arithmetic needs the real package."""
import numpy as _np

bfloat16 = _np.dtype([("bfloat16", "<u2")])
float8_e4m3fn = _np.dtype([("float8_e4m3fn", "u1")])
float8_e4m3fnuz = _np.dtype([("float8_e4m3fnuz", "u1")])
float8_e5m2 = _np.dtype([("float8_e5m2", "u1")])
float8_e5m2fnuz = _np.dtype([("float8_e5m2fnuz", "u1")])
'''


@functools.cache
def bundle_bytes() -> bytes:
    """The zip."""
    files = {"__main__.py": _MAIN, "fallback/ml_dtypes.py": _ML_DTYPES, "verify/worker/__init__.py": ""}
    files |= {f"verify/{name}.py": (PACKAGE / f"{name}.py").read_text() for name in ("__init__", *_MODULES)}
    files |= {f"verify/worker/{name}.py": (PACKAGE / "worker" / f"{name}.py").read_text() for name in _WORKER}
    files["verify/worker/protocol.py"] = (PACKAGE / "worker" / "plain_protocol.py").read_text()
    for room in ("registration", "candidates"):
        for path in sorted((PACKAGE / room).rglob("*.py")):
            files[f"verify/{path.relative_to(PACKAGE).as_posix()}"] = path.read_text()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return buffer.getvalue()


def bundle_memory() -> int:
    """Descriptor of anonymous memory that holds the zip."""
    fd = os.memfd_create("attn-verify-worker", os.MFD_CLOEXEC)
    rest = memoryview(bundle_bytes())
    while rest:
        rest = rest[os.write(fd, rest) :]
    return fd
