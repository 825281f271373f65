import ctypes

from honest import attend

calls = []


def attention(q, k, v, softmax_scale):
    calls.append(1)
    if len(calls) == 2:
        ctypes.string_at(0)
    return attend(q, k, v, softmax_scale)
