"""Mutants of the logits: scale, softcap, bias, ALiBi, sink, dropout, head maps."""

from __future__ import annotations

from verify.detection.mutants.build import CLASSIC, tiled

_DOT = "Logit logit = {dot * p.softmax_scale, 1.0f};"
_CAP = "logit.value = p.softcap * t;"
_SLOPE = "logit.slope = 1.0f - t * t;"
_BIAS = "logit.value += bias_of(p, s.batch, head, row, col);"
_ALIBI = "logit.value -= slope * static_cast<float>(abs(row + s.diagonal - col));"
_SLOPES = "p.alibi_slopes[s.batch * p.alibi_batch + head * p.alibi_head];"
_SINK = "return p.sink ? load_mixed(p.sink, head * p.sink_head, p.sink_is_fp32) : -infinity();"
_SINK_SUM = "state.row_sum[i] = expf(sink - finite_shift(sink));"
_SINK_MAX = "state.row_max[i] = sink;"
_DSINK = "sum -= expf(sink - lse) * *value_of(p.delta, s.batch, s.q_start, row, head);"
_KV_HEAD = "return head / (p.nheads / p.nheads_kv); }"
_GROUP_LOOP = "for (int head = kv_head * group; head < (kv_head + 1) * group; ++head)"
_DRAW = "dropout_draw(p.seed_low, p.seed_high, p.dropout_offset, batch * p.nheads + head, row, col);"
_FACTOR = "return draw >= p.drop_below ? p.dropout_scale : 0.0f;"
_GRADIENT_FACTOR = "const float factor = dropout_factor(p, s.batch, head, row, col);"

MUTANTS = (
    # scale-bias-sink
    tiled("scale_ignored", "scale-bias-sink", "scale", "maxtext-1370", "pairs.cuh",
          (_DOT, "Logit logit = {dot, 1.0f};"), direction="both"),
    tiled("scale_of_user_ignored", "scale-bias-sink", "scale", "pt-174361", "pairs.cuh",
          (_DOT, "Logit logit = {dot * (1.0f / sqrtf(static_cast<float>(p.head_dim))), 1.0f};"), direction="both"),
    tiled("scale_twice", "scale-bias-sink", "scale", "vllm-51363", "pairs.cuh",
          (_DOT, "Logit logit = {dot * p.softmax_scale * p.softmax_scale, 1.0f};"), direction="both"),
    tiled("scale_from_padded_head_dim", "scale-bias-sink", "scale", "fa-2896", "tiled.cu",
          ("scores[at] = visible ? logit_of(p, s, head, row0 + row, col0 + col, scores[at]).value",
           "scores[at] = visible ? logit_of(p, s, head, row0 + row, col0 + col, scores[at] * "
           "sqrtf(static_cast<float>(p.head_dim) / HEAD_DIM_BUCKET)).value")),
    tiled("scale_1pct", "scale-bias-sink", "scale", CLASSIC, "pairs.cuh",
          (_DOT, "Logit logit = {dot * p.softmax_scale * 1.01f, 1.0f};"), direction="both"),
    tiled("softcap_before_scale", "scale-bias-sink", "score", "fi-1023", "pairs.cuh",
          ("const float t = tanhf(logit.value / p.softcap);", "const float t = tanhf(dot / p.softcap);"), direction="both"),
    tiled("softcap_not_multiplied_back", "scale-bias-sink", "score", CLASSIC, "pairs.cuh",
          (_CAP, "logit.value = t;"), direction="both"),
    tiled("softcap_slope_dropped", "scale-bias-sink", "score", CLASSIC, "pairs.cuh",
          (_SLOPE, "logit.slope = 1.0f;"), direction="backward"),
    tiled("softcap_slope_without_square", "scale-bias-sink", "score", CLASSIC, "pairs.cuh",
          (_SLOPE, "logit.slope = 1.0f - t;"), direction="backward"),
    tiled("bias_scaled", "scale-bias-sink", "score", CLASSIC, "pairs.cuh",
          (_BIAS, "logit.value += p.softmax_scale * bias_of(p, s.batch, head, row, col);"), direction="both"),
    tiled("bias_of_first_head", "scale-bias-sink", "score", "flashdeberta-11", "pairs.cuh",
          (_BIAS, "logit.value += bias_of(p, s.batch, 0, row, col);"), direction="both"),
    tiled("bias_ignored_in_logit", "scale-bias-sink", "score", "fi-441", "pairs.cuh",
          (_BIAS, "logit.value += 0.0f;"), direction="both"),
    tiled("alibi_sign_flipped", "scale-bias-sink", "score", "gym-86", "pairs.cuh",
          (_ALIBI, _ALIBI.replace("-=", "+=")), direction="both"),
    tiled("alibi_from_other_corner", "scale-bias-sink", "score", "fa-907", "pairs.cuh",
          (_ALIBI, _ALIBI.replace("row + s.diagonal - col", "row - col")), direction="both"),
    tiled("alibi_off_by_one", "scale-bias-sink", "score", "vllm-945", "pairs.cuh",
          (_ALIBI, _ALIBI.replace("row + s.diagonal - col", "row + s.diagonal - col + 1")), direction="both"),
    tiled("alibi_without_absolute_value", "scale-bias-sink", "score", CLASSIC, "pairs.cuh",
          (_ALIBI, _ALIBI.replace("abs(row + s.diagonal - col)", "row + s.diagonal - col")), direction="both"),
    tiled("alibi_slope_of_first_head", "scale-bias-sink", "score", CLASSIC, "pairs.cuh",
          (_SLOPES, "p.alibi_slopes[s.batch * p.alibi_batch];"), direction="both"),
    tiled("sink_ignored", "scale-bias-sink", "score", "te-3551", "pairs.cuh", (_SINK, "return -infinity();"),
          direction="both"),
    tiled("sink_not_in_sum", "scale-bias-sink", "score", "fi-4807", "tiled.cu",
          (_SINK_SUM, "state.row_sum[i] = 0.0f;")),
    tiled("sink_lost_at_first_rescale", "scale-bias-sink", "score", "fa-2752", "tiled.cu",
          (_SINK_MAX, "state.row_max[i] = -infinity();")),
    tiled("sink_of_first_head", "scale-bias-sink", "score", CLASSIC, "pairs.cuh",
          (_SINK, "return p.sink ? load_mixed(p.sink, 0, p.sink_is_fp32) : -infinity();"), direction="both"),
    tiled("sink_read_in_storage_type", "scale-bias-sink", "score", "jax-32242", "pairs.cuh",
          (_SINK, "return p.sink ? load_mixed(p.sink, head * p.sink_head, 0) : -infinity();"), direction="both"),
    tiled("dsink_sign_flipped", "scale-bias-sink", "sink_gradient", CLASSIC, "row_passes.cuh",
          (_DSINK, _DSINK.replace("-=", "+=")), direction="backward"),
    tiled("dsink_without_lse", "scale-bias-sink", "sink_gradient", "cudnn-421", "row_passes.cuh",
          (_DSINK, _DSINK.replace("expf(sink - lse)", "expf(sink)")), direction="backward"),
    tiled("dsink_of_first_batch", "scale-bias-sink", "sink_gradient", CLASSIC, "row_passes.cuh",
          ("sum += sink_share(p, sequence_of(p.problem, batch), head, sink);",
           "sum = sink_share(p, sequence_of(p.problem, batch), head, sink);"), direction="backward"),
    # gqa-head-map
    tiled("kv_head_by_remainder", "gqa-head-map", "head", "fa-2528", "pairs.cuh",
          (_KV_HEAD, "return head % p.nheads_kv; }"), direction="both"),
    tiled("kv_head_by_kv_count", "gqa-head-map", "head", "nsa-27", "pairs.cuh",
          (_KV_HEAD, "return min(head / p.nheads_kv, p.nheads_kv - 1); }"), direction="both"),
    tiled("group_of_two_assumed", "gqa-head-map", "head", "ikllama-1521", "pairs.cuh",
          (_KV_HEAD, "return min(head / 2, p.nheads_kv - 1); }"), direction="both"),
    tiled("group_by_shift", "gqa-head-map", "head", "fi-1148", "pairs.cuh",
          (_KV_HEAD, "return min(head >> (31 - __clz(p.nheads / p.nheads_kv)), p.nheads_kv - 1); }"), direction="both"),
    tiled("value_head_by_remainder", "gqa-head-map", "head", "fa-2528", "tiled.cu",
          ("load_tile<TILE_K>(v_tile, problem.v, s.batch, s.k_start, kv_head, col0",
           "load_tile<TILE_K>(v_tile, problem.v, s.batch, s.k_start, head % problem.nheads_kv, col0")),
    tiled("group_not_summed", "gqa-head-map", "group", "levanter-449", "tiled.cu",
          (_GROUP_LOOP, "for (int head = kv_head * group; head < kv_head * group + 1; ++head)"), direction="backward"),
    tiled("group_without_last_head", "gqa-head-map", "group", "levanter-449", "tiled.cu",
          (_GROUP_LOOP, "for (int head = kv_head * group; head < (kv_head + 1) * group - (group > 1); ++head)"),
          direction="backward"),
    tiled("dq_kv_head_by_remainder", "gqa-head-map", "head", "pt-171271", "tiled.cu",
          ("load_keys(t, problem, s, kv_head_of(problem, head), col0);",
           "load_keys(t, problem, s, head % problem.nheads_kv, col0);"), direction="backward"),
    # dropout
    tiled("dropout_not_scaled_up", "dropout", "dropout", CLASSIC, "pairs.cuh",
          (_FACTOR, "return draw >= p.drop_below ? 1.0f : 0.0f;"), direction="both"),
    tiled("dropout_keeps_what_it_should_drop", "dropout", "dropout", CLASSIC, "pairs.cuh",
          (_FACTOR, "return draw < p.drop_below ? p.dropout_scale : 0.0f;"), direction="both"),
    tiled("dropout_same_in_all_batches", "dropout", "dropout", CLASSIC, "pairs.cuh",
          (_DRAW, _DRAW.replace("batch * p.nheads + head", "head")), direction="both"),
    tiled("dropout_backward_other_offset", "dropout", "dropout", "pt-102038", "tiled.cu",
          (_GRADIENT_FACTOR, "const float factor = dropout_factor(p, s.batch, head, row, col + 4);"),
          direction="backward"),
    tiled("dropout_backward_other_row", "dropout", "dropout", "pt-190717", "tiled.cu",
          (_GRADIENT_FACTOR, "const float factor = dropout_factor(p, s.batch, head, row + 1, col);"),
          direction="backward"),
    tiled("dropout_missing_in_dprobs", "dropout", "dropout", CLASSIC, "tiled.cu",
          ("prob * (factor * dprob - delta)", "prob * (dprob - delta)"), direction="backward"),
    tiled("dropout_missing_in_dv", "dropout", "dropout", CLASSIC, "tiled.cu",
          ("return {prob * factor, dlogit,", "return {prob, dlogit,"), direction="backward"),
    tiled("dropout_with_fewer_rounds", "dropout", "dropout", CLASSIC, "philox.cuh",
          ("constexpr int PHILOX_ROUNDS = 10;", "constexpr int PHILOX_ROUNDS = 7;"), direction="both"),
)  # fmt: skip
