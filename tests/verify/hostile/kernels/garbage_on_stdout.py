import os

from honest import attend


def attention(q, k, v, softmax_scale):
    os.write(1, b"AVW1" + os.urandom(4096))
    return attend(q, k, v, softmax_scale)
