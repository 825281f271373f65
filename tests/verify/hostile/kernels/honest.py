"""Plain attention that the hostile files imitate or fall back on, and the harness's descriptors in a worker."""

import sys

import numpy as np


def attend(q, k, v, softmax_scale):
    scores = np.einsum("bihd,bjhd->bhij", q, k) * np.float32(softmax_scale)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.einsum("bhij,bjhd->bihd", weights / weights.sum(axis=-1, keepdims=True), v)


def descriptor(name):
    return int(dict(text.lstrip("-").split("=") for text in sys.argv[1:])[name])
