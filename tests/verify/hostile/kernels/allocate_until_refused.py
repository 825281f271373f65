import resource
from pathlib import Path

import numpy as np


def attention(q, k, v, softmax_scale):
    # A limit of its own, so that the machine of whoever runs this is not brought down.
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), resource.RLIM_INFINITY))
    blocks = []
    while True:
        blocks.append(np.ones(1 << 22))
