import numpy as np
from honest import attend


def attention(q, k, v, softmax_scale):
    out = attend(q, k, v, softmax_scale)
    wide = np.full((*out.shape[:-1], 2 * out.shape[-1]), np.nan, out.dtype)[..., ::-2]
    wide[...] = out
    return wide
