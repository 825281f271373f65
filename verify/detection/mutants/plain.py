"""Mutants of the textbook version: the same mistakes where S and P are whole matrices."""

from __future__ import annotations

from verify.detection.mutants.build import CLASSIC, textbook

_WEIGHT = "const float weight = is_hidden(score) ? score : expf(score - shift);"
_SUM = "sum = warp_sum(sum) + expf(sink - shift);"
_MAX = "return warp_max(largest);"
_DIVIDE = "p.probs[first + col] = sum == 0.0f ? weightless_out(largest) : weight / sum;"
_LSE = "sum == 0.0f ? weightless_lse(largest) : shift + logf(sum);"
_VALUES = "sum += prob * dropout_factor(problem, s.batch, head, e.row, key) * to_float(v[key * problem.v.seq]);"
_KEYS = "for (int key = 0; key < s.k_length; ++key) {"
_PROB = "p.probs[at] = is_hidden(score) ? score : expf(score - lse);"
_DLOGIT = "return p.probs[at] * (p.dprobs[at] - *value_of(p.delta, s.batch, s.q_start, row, head));"
_DQ = "e.col * p.dq.dim, sum * problem.softmax_scale);"
_DK = "e.col * p.dk.dim, sum * p.problem.softmax_scale);"
_GROUP = "for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {"
_DPROBS = "p.dprobs[at] = dropout_factor(problem, s.batch, head, e.row, e.col) *\n"
_INDEX = "return ((static_cast<long long>(batch) * p.nheads + head) * p.seqlen_q + row) * p.seqlen_k + col;"
_BIAS_HEADS = "const int end_head = p.bias_heads == 1 ? problem.nheads : blockIdx.y + 1;"

MUTANTS = (
    textbook("sink_not_in_sum", "scale-bias-sink", "score", "te-3551", (_SUM, "sum = warp_sum(sum);")),
    textbook("maximum_of_one_lane", "softmax-rescale", "rescale", CLASSIC, (_MAX, "return largest;")),
    textbook("maximum_not_subtracted", "softmax-rescale", "overflow", CLASSIC,
             (_WEIGHT, "const float weight = is_hidden(score) ? score : expf(score);"),
             (_SUM, "sum = warp_sum(sum) + expf(sink);"),
             (_LSE, "sum == 0.0f ? weightless_lse(largest) : logf(sum);")),
    textbook("division_dropped", "softmax-rescale", "rescale", CLASSIC,
             (_DIVIDE, "p.probs[first + col] = sum == 0.0f ? weightless_out(largest) : weight;")),
    textbook("lse_in_base_two", "lse", "lse", "pt-181645",
             (_LSE, "sum == 0.0f ? weightless_lse(largest) : (shift + logf(sum)) * 1.44269504f;")),
    textbook("last_value_skipped", "mask-boundary", "tail", CLASSIC,
             (_KEYS, "for (int key = 0; key < s.k_length - (s.k_length > 1); ++key) {")),
    textbook("probs_of_next_key", "layout-stride", "tail", CLASSIC,
             (_VALUES, _VALUES.replace("v[key * problem.v.seq]", "v[min(key + 1, s.k_length - 1) * problem.v.seq]"))),
    textbook("probs_rounded", "precision", "precision", CLASSIC,
             (_DIVIDE, "p.probs[first + col] = sum == 0.0f ? weightless_out(largest) : "
                       "__bfloat162float(__float2bfloat16_rn(weight / sum));")),
    textbook("lse_dropped_in_backward", "bwd-recompute", "recompute", CLASSIC,
             (_PROB, "p.probs[at] = is_hidden(score) ? score : expf(score);"), direction="backward"),
    textbook("delta_dropped", "bwd-recompute", "delta", CLASSIC, (_DLOGIT, "return p.probs[at] * p.dprobs[at];"),
             direction="backward"),
    textbook("dq_without_scale", "bwd-recompute", "grad_scale", CLASSIC, (_DQ, "e.col * p.dq.dim, sum);"),
             direction="backward"),
    textbook("dk_without_scale", "bwd-recompute", "grad_scale", CLASSIC, (_DK, "e.col * p.dk.dim, sum);"),
             direction="backward"),
    textbook("group_not_summed", "gqa-head-map", "group", "levanter-449",
             (_GROUP, "for (int head = kv_head * group; head < kv_head * group + 1; ++head) {"), direction="backward"),
    textbook("dropout_missing_in_dprobs", "dropout", "dropout", CLASSIC, (_DPROBS, "p.dprobs[at] =\n"),
             direction="backward"),
    textbook("workspace_head_stride_dropped", "index-overflow", "layout", "lc-24912",
             (_INDEX, "return (static_cast<long long>(batch) * p.nheads * p.seqlen_q + row) * p.seqlen_k + col;"),
             direction="both"),
    textbook("dbias_of_one_head", "bwd-mismatch", "bias_gradient", CLASSIC,
             (_BIAS_HEADS, "const int end_head = blockIdx.y + 1;"), direction="backward"),
)  # fmt: skip
