from honest import attend


def attention(q, k, v, softmax_scale):
    out = attend(q, k, v, softmax_scale)
    return out, out, out
