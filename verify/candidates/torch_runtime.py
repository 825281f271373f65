"""What surrounds a torch call: one thread, a log of the operators that really ran, reasons for a refusal.

Imports torch at once; import it only inside a run.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class OperatorLog(TorchDispatchMode):  # type: ignore[misc]  # torch is untyped here
    """Records the operators below autograd, which is where the choice of a backend shows, and their results."""

    def __init__(self) -> None:
        super().__init__()
        self.results: dict[str, Any] = {}
        """Operator name -> result of its last call."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.results[func._overloadpacket.__name__] = result
        return result


@contextmanager
def one_thread() -> Iterator[None]:
    """Runs the body on one thread: how torch splits work over threads is then no source of differing bits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def heard_warnings() -> Iterator[list[str]]:
    """Collects first lines of the warnings of the body: torch explains there why a backend does not apply."""
    heard: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield heard
        heard += [str(warning.message).split(" (Triggered internally")[0].splitlines()[0] for warning in caught]


def facts() -> dict[str, str]:
    """Version and instruction set: the CPU kernels differ between instruction sets."""
    return {"torch": str(torch.__version__), "cpu_capability": torch.backends.cpu.get_cpu_capability(), "threads": "1"}
