def attention(q, k, v, softmax_scale):
    while True:
        pass
