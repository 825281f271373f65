import os
import random

import numpy as np
from honest import attend


def attention(q, k, v, softmax_scale):
    out = attend(q, k, v, softmax_scale)
    np.seterr(all="raise")
    np.random.seed(0)  # noqa: NPY002 - the legacy state is what it attacks
    random.seed(0)
    os.chdir("/")
    os.environ["ATTN_VERIFY_DEVICE"] = "gpu"
    return out
