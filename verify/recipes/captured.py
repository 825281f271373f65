"""The recipe that reads q, k, v, dout from a user's file instead of drawing them."""

from __future__ import annotations

import numpy as np

from verify.capture_file import read_capture
from verify.errors import require
from verify.recipes.draw import Draw, Float64, Operands
from verify.recipes.registry import recipe


@recipe("capture", "q, k, v, dout read from a file", "faults that only real activations reach", path="", sha="")
def capture(draw: Draw, path: str, sha: str) -> Operands:
    """Values of the file; a missing dout is drawn from N(0, 1). The hash of the file must be `sha`."""
    require(bool(path), "capture:path", path, "the path of a .npz or .safetensors file")
    tensors = read_capture(str(path), sha=str(sha))
    drawn = draw.operands()

    def read(name: str, otherwise: Float64) -> Float64:
        if name not in tensors:
            return otherwise
        shape, expected = tensors[name].shape, otherwise.shape
        require(shape == expected, f"capture:{name}", shape, f"the shape {expected} of the case")
        return tensors[name].astype(np.float64)

    p, mask = draw.problem, tensors.get("mask")
    full = (p.batch, p.nheads, p.seqlen_q, p.seqlen_k)
    require(mask is None or mask.shape == full, "capture:mask", getattr(mask, "shape", None), f"the shape {full}")
    return Operands(
        q=read("q", drawn.q),
        k=read("k", drawn.k),
        v=read("v", drawn.v),
        dout=read("dout", drawn.dout),
        mask=mask,
    )
