import numpy as np
from honest import attend


def attention(q, k, v, softmax_scale):
    return attend(q, k, v, softmax_scale).astype(np.float64)
