"""Mutants of the backward: delta, the recomputed P, scales, products, options that only the forward honours."""

from __future__ import annotations

from verify.detection.mutants.build import CLASSIC, tiled

_DLOGIT = "const float dlogit = prob * (factor * dprob - delta);"
_PROB = "const float prob = expf(logit.value - lse);"
_ROWS = "t.weights[at], t.dscores[at], t.lse[row],\n                                t.delta[row]));"
_LSE_LOAD = "load_rows(t.lse, p.lse, s.batch, s.q_start, head, row0, s.q_length);"
_DELTA_LOAD = "load_rows(t.delta, p.delta, s.batch, s.q_start, head, row0, s.q_length);"
_DK_STORE = "store_rows(p.dk, dk, problem.softmax_scale, s.batch"
_DQ_STORE = "store_rows(p.dq, dq, problem.softmax_scale, s.batch"
_DV_STORE = "store_rows(p.dv, dv, 1.0f, s.batch"
_DV_SUM = "add_product<MY_KEYS, 1, KEY_PITCH>(dv, t.weights, t.dout, rows, me);"
_DK_SUM = "add_product<MY_KEYS, 1, KEY_PITCH>(dk, t.dscores, t.q, rows, me);"
_DQ_SUM = "add_product<MY_ROWS, KEY_PITCH, 1>(dq, t.dscores, t.k, min(TILE_K, s.k_length - col0), me);"
_VISIBLE = "if (!is_visible(p, s, head, row, col))"
_PAIR = "return {prob * factor, dlogit, dlogit * logit.slope};"
_DLSE = "sum -= *value_of(p.dlse, s.batch, s.q_start, row, head);"
_DELTA_SUM = "sum += to_float(out[c * p.out.dim]) * to_float(dout[c * p.dout.dim]);"
_TOTAL = "total += sum[i * KEY_PITCH + j];"
_BIAS_SUM = "                if (!is_hidden(g.dlogit))\n                    sum[at] += g.dlogit;"

MUTANTS = (
    # bwd-recompute
    tiled("delta_dropped", "bwd-recompute", "delta", CLASSIC, "tiled.cu",
          (_DLOGIT, "const float dlogit = prob * (factor * dprob);"), direction="backward"),
    tiled("delta_added", "bwd-recompute", "delta", CLASSIC, "tiled.cu",
          (_DLOGIT, "const float dlogit = prob * (factor * dprob + delta);"), direction="backward"),
    tiled("delta_of_first_row", "bwd-recompute", "delta", "fa-2754", "tiled.cu",
          (_ROWS, _ROWS.replace("t.delta[row]", "t.delta[0]")), direction="backward"),
    tiled("delta_of_first_batch", "bwd-recompute", "delta", "te-3216", "tiled.cu",
          (_DELTA_LOAD, _DELTA_LOAD.replace("s.batch", "0")), direction="backward"),
    tiled("delta_of_next_head", "bwd-recompute", "delta", CLASSIC, "tiled.cu",
          (_DELTA_LOAD, _DELTA_LOAD.replace("head, row0", "(head + 1) % problem.nheads, row0")), direction="backward"),
    tiled("delta_of_half_the_dims", "bwd-recompute", "delta", "fa-2481", "row_passes.cuh",
          ("for (int c = lane; c < p.problem.head_dim_v; c += WARP)",
           "for (int c = lane; c < p.problem.head_dim_v / 2; c += WARP)"), direction="backward"),
    tiled("delta_without_reduction", "bwd-recompute", "delta", CLASSIC, "row_passes.cuh",
          ("    sum = warp_sum(sum);\n    if (lane != 0)", "    if (lane != 0)"), direction="backward"),
    tiled("lse_of_first_row", "bwd-recompute", "recompute", CLASSIC, "tiled.cu",
          (_ROWS, _ROWS.replace("t.lse[row]", "t.lse[0]")), direction="backward"),
    tiled("lse_of_first_batch", "bwd-recompute", "recompute", "te-3216", "tiled.cu",
          (_LSE_LOAD, _LSE_LOAD.replace("s.batch", "0")), direction="backward"),
    tiled("lse_of_next_head", "bwd-recompute", "recompute", "te-3333", "tiled.cu",
          (_LSE_LOAD, _LSE_LOAD.replace("head, row0", "(head + 1) % problem.nheads, row0")), direction="backward"),
    tiled("lse_dropped_in_backward", "bwd-recompute", "recompute", CLASSIC, "tiled.cu",
          (_PROB, "const float prob = expf(logit.value);"), direction="backward"),
    tiled("backward_exponent_clamped", "bwd-recompute", "recompute", "fa-334", "tiled.cu",
          (_PROB, "const float prob = expf(logit.value - fmaxf(lse, -10.0f));"), direction="backward"),
    tiled("dlse_ignored", "bwd-recompute", "dlse", CLASSIC, "row_passes.cuh",
          (_DLSE, "sum -= 0.0f;"), direction="backward"),
    tiled("dlse_sign_flipped", "bwd-recompute", "dlse", CLASSIC, "row_passes.cuh",
          (_DLSE, _DLSE.replace("-=", "+=")), direction="backward"),
    tiled("dk_without_scale", "bwd-recompute", "grad_scale", CLASSIC, "tiled.cu",
          (_DK_STORE, _DK_STORE.replace("problem.softmax_scale", "1.0f")), direction="backward"),
    tiled("dk_scaled_twice", "bwd-recompute", "grad_scale", CLASSIC, "tiled.cu",
          (_DK_STORE, _DK_STORE.replace("problem.softmax_scale", "problem.softmax_scale * problem.softmax_scale")),
          direction="backward"),
    tiled("dq_without_scale", "bwd-recompute", "grad_scale", CLASSIC, "tiled.cu",
          (_DQ_STORE, _DQ_STORE.replace("problem.softmax_scale", "1.0f")), direction="backward"),
    tiled("dq_scaled_by_log2e", "bwd-recompute", "grad_factor", CLASSIC, "tiled.cu",
          (_DQ_STORE, _DQ_STORE.replace("problem.softmax_scale", "problem.softmax_scale * 1.44269504f")),
          direction="backward"),
    tiled("dk_scaled_by_ln2", "bwd-recompute", "grad_factor", CLASSIC, "tiled.cu",
          (_DK_STORE, _DK_STORE.replace("problem.softmax_scale", "problem.softmax_scale * 0.69314718f")),
          direction="backward"),
    tiled("dv_scaled", "bwd-recompute", "dv_only", CLASSIC, "tiled.cu",
          (_DV_STORE, _DV_STORE.replace("1.0f", "problem.softmax_scale")), direction="backward"),
    tiled("dv_from_dscores", "bwd-recompute", "dv_only", CLASSIC, "tiled.cu",
          (_DV_SUM, _DV_SUM.replace("t.weights", "t.dscores")), direction="backward"),
    tiled("dk_from_probs", "bwd-recompute", "dk_only", CLASSIC, "tiled.cu",
          (_DK_SUM, _DK_SUM.replace("t.dscores", "t.weights")), direction="backward"),
    tiled("dq_from_values", "bwd-recompute", "dq_only", CLASSIC, "tiled.cu",
          (_DQ_SUM, _DQ_SUM.replace("t.k, min", "t.v, min")), direction="backward"),
    tiled("dv_without_last_row", "bwd-recompute", "dv_only", CLASSIC, "tiled.cu",
          (_DV_SUM, _DV_SUM.replace("rows, me", "rows - 1, me")), direction="backward"),
    tiled("dscores_not_scaled_by_slope", "bwd-mismatch", "score", "fa-2101", "tiled.cu",
          (_PAIR, "return {prob * factor, dlogit, dlogit};"), direction="backward"),
    # bwd-mismatch
    tiled("backward_ignores_masks", "bwd-mismatch", "bwd_mismatch", "mslk-263", "tiled.cu",
          (_VISIBLE, "if (row >= s.q_length || col >= s.k_length)"), direction="backward"),
    tiled("backward_always_causal", "bwd-mismatch", "bwd_mismatch", "triton-4541", "tiled.cu",
          (_VISIBLE, "if (!is_visible(p, s, head, row, col) || col > row + s.diagonal)"), direction="backward"),
    tiled("backward_always_top_left", "bwd-mismatch", "bwd_mismatch", "triton-5660", "tiled.cu",
          (_VISIBLE, "if (!is_visible(p, s, head, row, col) || (p.band_right == 0 && col > row))"),
          direction="backward"),
    tiled("backward_ignores_bias", "bwd-mismatch", "bwd_mismatch", "fa-2101", "tiled.cu",
          (_PROB, "const float prob = expf(logit.value - (p.bias.data ? bias_of(p, s.batch, head, row, col) : 0.0f) - "
                  "lse);"), direction="backward"),
    tiled("dbias_from_dscores", "bwd-mismatch", "bias_gradient", CLASSIC, "tiled.cu",
          (_BIAS_SUM, _BIAS_SUM.replace("+= g.dlogit", "+= g.dlogit * problem_scale(p)")),
          ("// One sequence and head of a tile of dbias",
           "__device__ __forceinline__ float problem_scale(const BackwardParams& p) { return p.problem.softmax_scale; }\n\n"
           "// One sequence and head of a tile of dbias"), direction="backward"),
    tiled("dbias_overwritten_not_summed", "bwd-mismatch", "bias_gradient", CLASSIC, "tiled.cu",
          (_BIAS_SUM, _BIAS_SUM.replace("+=", "=")), direction="backward"),
    tiled("dbias_of_first_column_of_a_tile", "bwd-mismatch", "bias_gradient", CLASSIC, "tiled.cu",
          (_TOTAL, "total += sum[i * KEY_PITCH];"), direction="backward"),
    tiled("dbias_kv_head_by_remainder", "gqa-head-map", "bias_gradient", "fa-2528", "tiled.cu",
          ("load_keys(t, p.problem, s, kv_head_of(p.problem, head), col0);",
           "load_keys(t, p.problem, s, head % p.problem.nheads_kv, col0);"), direction="backward"),
    tiled("delta_from_dout_twice", "bwd-recompute", "delta", CLASSIC, "row_passes.cuh",
          (_DELTA_SUM, "sum += to_float(dout[c * p.dout.dim]) * to_float(dout[c * p.dout.dim]);"),
          direction="backward"),
)  # fmt: skip
