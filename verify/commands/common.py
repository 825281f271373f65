"""What several commands share: the device, lists of names, JSON on stdout."""

from __future__ import annotations

import json
import os
from typing import Any

from verify.environment import diagnose_gpu
from verify.errors import require

PROFILES = {
    "quick": "traps and every dtype against every feature, small shapes: about two minutes on two cores",
    "full": "every pair of features, up to 2048 keys: about 1000 cases",
    "nightly": "full, with 16384-key cases and 300 random ones that rotate with the seed",
}
"""Profile -> what it holds."""


def resolve_device(device: str) -> str:
    """The device of a run: auto takes the GPU where there is one.

    Raises
    ------
    UsageError
        If a GPU is asked for and there is none.
    """
    chosen = "cpu"
    if device != "cpu":
        gpu = diagnose_gpu()
        require(device != "gpu" or gpu.ok, "device", device, f"a machine with a GPU ({gpu.text})")
        chosen = "gpu" if gpu.ok else "cpu"
    os.environ["ATTN_VERIFY_DEVICE"] = chosen
    return chosen


def split_names(text: str) -> tuple[str, ...]:
    """Names of a comma-separated list."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    print(json.dumps(value, indent=2, allow_nan=False))
