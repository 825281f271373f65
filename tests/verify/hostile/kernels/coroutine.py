from honest import attend


async def attention(q, k, v, softmax_scale):
    return attend(q, k, v, softmax_scale)
