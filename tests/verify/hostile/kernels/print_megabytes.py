from honest import attend


def attention(q, k, v, softmax_scale):
    for _ in range(8):
        print("x" * (1 << 20))
    return attend(q, k, v, softmax_scale)
