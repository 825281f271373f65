def attention(q, k, v, softmax_scale):
    return q[:, ::-1]
