import time


def attention(q, k, v, softmax_scale):
    time.sleep(1000)
