"""NumPy emulation of a tiled attention kernel: an honest candidate whose every rounding is known and selectable.

It shares no code with the reference, masks included: it is an implementation under test.
"""

from __future__ import annotations

from verify.candidates.numpy_tiled.candidate import NumpyTiled
from verify.candidates.numpy_tiled.scheme import Scheme
from verify.candidates.numpy_tiled.variants import VARIANTS, build, default_scheme, with_arithmetic

__all__ = ["VARIANTS", "NumpyTiled", "Scheme", "build", "default_scheme", "with_arithmetic"]
