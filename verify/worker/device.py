"""Asks whether an error has left the GPU context of this process unusable: then every later call would fail too."""

from __future__ import annotations

import sys
from typing import Any


def lost_device() -> str:
    """Why the CUDA context of this process answers no more; empty when it does, or when there is none.

    Looks only at libraries that the candidate has loaded, and starts no context of its own.
    """
    cupy: Any = sys.modules.get("cupy")
    torch: Any = sys.modules.get("torch")
    try:
        if cupy is not None and _has_context(cupy):
            cupy.cuda.runtime.deviceSynchronize()
        if torch is not None and torch.cuda.is_initialized():
            torch.cuda.synchronize()
    except RuntimeError as error:  # both libraries derive their CUDA errors from it
        return " ".join(str(error).split()) or type(error).__name__
    return ""


def _has_context(cupy: Any) -> bool:
    try:
        return bool(cupy.cuda.driver.ctxGetCurrent())
    except RuntimeError:  # no driver on this machine, or not yet initialised
        return False
