"""Per-element bounds derived from a kernel's declared arithmetic and the fp64 reference: see docs/tolerances.md.

Never sees a candidate's numbers and holds no tuned constant.
"""

from verify.tolerance.bound import Bound
from verify.tolerance.derive import derive_bounds
from verify.tolerance.roundings import CONFIDENCE

__all__ = ["CONFIDENCE", "Bound", "derive_bounds"]
