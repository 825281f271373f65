"""Mutants of rows without keys, of the running maximum and its rescaling, of special values, and of lse."""

from __future__ import annotations

from verify.detection.mutants.build import CLASSIC, tiled

_RAISED = "return fmaxf(row_max, fmaxf(score, LOWEST));"
_SHIFT = "return row_max == -infinity() ? 0.0f : row_max;"
_LOWEST = "constexpr float LOWEST = -3.402823466e38f;"
_WEIGHTLESS_OUT = "return row_max == -infinity() ? 0.0f : not_a_number();"
_WEIGHTLESS_LSE = "return row_max == -infinity() ? row_max : not_a_number();"
_DIVIDE = "state.out[i][c] = sum == 0.0f ? weightless_out(largest) : state.out[i][c] / sum;"
_LSE = "sum == 0.0f ? weightless_lse(largest) : largest + logf(sum);"
_MARKED = "head, row0 + row, col0 + col, scores[at]).value : hidden_mark();"
_RESCALE = "const float rescale = expf(state.row_max[i] - shift);"
_SUM = "state.row_sum[i] = state.row_sum[i] * rescale + row_sum(sum);"
_OUT_RESCALE = "state.out[i][c] *= rescale;"
_NEW_MAX = "state.row_max[i] = largest;"
_OLD_MAX = "float largest = state.row_max[i];"
_GRADIENT_HIDDEN = "return {hidden_mark(), hidden_mark(), hidden_mark()};"

MUTANTS = (
    # masked-row
    tiled("empty_row_divides_by_zero", "masked-row", "masked_row", "pt-103963", "tiled.cu",
          (_DIVIDE, "state.out[i][c] = state.out[i][c] / sum;")),
    tiled("empty_row_is_nan", "masked-row", "masked_row", "pt-124877", "numbers.cuh",
          (_WEIGHTLESS_OUT, "return not_a_number();")),
    tiled("empty_row_sum_is_one", "masked-row", "masked_row", "fi-353", "tiled.cu",
          ("const float sum = row < s.q_length ? state.row_sum[i] : 0.0f;",
           "const float sum = row < s.q_length && state.row_sum[i] > 0.0f ? state.row_sum[i] : 1.0f;")),
    tiled("first_tile_masked_gives_nan", "masked-row", "masked_row", "pt-127055", "numbers.cuh",
          (_SHIFT, "return row_max;")),
    tiled("finite_mask_value", "masked-row", "masked_row", "pt-109517", "tiled.cu",
          (_MARKED, "head, row0 + row, col0 + col, scores[at]).value : -1.0e4f;")),
    tiled("mask_by_minus_infinity", "masked-row", "masked_row", "sgl-1779", "tiled.cu",
          (_MARKED, "head, row0 + row, col0 + col, scores[at]).value : -infinity();")),
    tiled("empty_row_left_unwritten", "masked-row", "unwritten", "pt-81077", "tiled.cu",
          ("    const int end = end_key_tile(problem, s, row0);\n    for (int col0 = first_key_tile(problem, s, row0); "
           "col0 < end; col0 += TILE_K) {\n        if (block_mask_hides(problem, s, head, row0, col0))\n"
           "            continue;\n        __syncthreads();  // write after read: the last tile of K, V and P",
           "    const int end = end_key_tile(problem, s, row0);\n    if (end == 0)\n        return;\n"
           "    for (int col0 = first_key_tile(problem, s, row0); "
           "col0 < end; col0 += TILE_K) {\n        if (block_mask_hides(problem, s, head, row0, col0))\n"
           "            continue;\n        __syncthreads();  // write after read: the last tile of K, V and P")),
    tiled("hidden_gradient_is_nan", "masked-row", "masked_row", "brevitas-1591", "tiled.cu",
          (_GRADIENT_HIDDEN, "return {0.0f * lse, 0.0f * lse, 0.0f * lse};"), direction="backward"),
    # special-values
    tiled("hidden_weight_is_zero", "special-values", "poison", "vllm-30887", "tiled.cu",
          (_GRADIENT_HIDDEN, "return {0.0f, 0.0f, 0.0f};"), direction="backward"),
    tiled("hidden_skip_dropped", "special-values", "poison", "pt-101967", "tile.cuh",
          ("            if (is_hidden(weight))\n                continue;\n",
           "            if (is_hidden(weight) && isnan(term[0]) == 0)\n                continue;\n"), direction="both"),
    tiled("tail_rows_not_zero_filled", "special-values", "memory", "sgl-15757", "tile.cuh",
          ("if (first + row < end && dim < dims)", "if (dim < dims)"), direction="both"),
    tiled("minus_infinity_bias_visible", "special-values", "poison", "txla-9219", "pairs.cuh",
          ("return !p.bias.data || bias_of(p, s.batch, head, row, col) != -infinity();", "return true;"),
          direction="both"),
    tiled("nan_score_swallowed", "special-values", "poison", "cubecl-1070", "tiled.cu",
          ("            score = expf(score - shift);\n", "            score = expf(fminf(score - shift, 0.0f));\n")),
    tiled("guard_below_lowest_dropped", "special-values", "masked_row", "sage-164", "numbers.cuh",
          (_RAISED, "return fmaxf(row_max, score);")),
    # softmax-rescale
    tiled("guard_value_becomes_maximum", "softmax-rescale", "rescale", "fa-2082", "tiled.cu",
          (_NEW_MAX, "state.row_max[i] = shift;")),
    tiled("finite_sentinel_maximum", "softmax-rescale", "masked_row", "fi-4267", "numbers.cuh",
          (_LOWEST, "constexpr float LOWEST = -5.0e3f;")),
    tiled("maximum_floor_of_minus_20", "softmax-rescale", "masked_row", "fi-4450", "numbers.cuh",
          (_LOWEST, "constexpr float LOWEST = -20.0f;")),
    tiled("maximum_of_tile_only", "softmax-rescale", "rescale", "tilelang-1148", "tiled.cu",
          (_OLD_MAX, "float largest = -infinity();")),
    tiled("sum_not_rescaled", "softmax-rescale", "rescale", CLASSIC, "tiled.cu",
          (_SUM, "state.row_sum[i] = state.row_sum[i] + row_sum(sum);")),
    tiled("out_not_rescaled", "softmax-rescale", "rescale", CLASSIC, "tiled.cu", (_OUT_RESCALE, "state.out[i][c] *= 1.0f;")),
    tiled("rescale_inverted", "softmax-rescale", "rescale", CLASSIC, "tiled.cu",
          (_RESCALE, "const float rescale = expf(shift - finite_shift(state.row_max[i]));")),
    tiled("rescale_skipped_for_small_growth", "softmax-rescale", "rescale", "fa-2577", "tiled.cu",
          (_RESCALE, "const float growth = shift - state.row_max[i];\n"
                     "    const float rescale = growth < 0.5f ? 1.0f : expf(-growth);")),
    tiled("maximum_never_updated", "softmax-rescale", "rescale", CLASSIC, "tiled.cu",
          (_NEW_MAX, "state.row_max[i] = state.row_max[i] == -infinity() ? largest : state.row_max[i];")),
    tiled("maximum_of_one_thread", "softmax-rescale", "rescale", CLASSIC, "tiled.cu",
          ("    largest = row_max(largest);\n", "")),
    tiled("sum_of_one_thread", "softmax-rescale", "rescale", CLASSIC, "tiled.cu",
          (_SUM, "state.row_sum[i] = state.row_sum[i] * rescale + sum;")),
    tiled("row_sum_over_half_the_threads", "softmax-rescale", "rescale", CLASSIC, "tile.cuh",
          ("for (int step = THREADS_X / 2; step > 0; step /= 2)\n        x += __shfl",
           "for (int step = THREADS_X / 4; step > 0; step /= 2)\n        x += __shfl")),
    tiled("sum_counts_hidden_pairs", "softmax-rescale", "mask", CLASSIC, "tiled.cu",
          ("            sum += score;\n        }\n", "            sum += score;\n        } else {\n            sum += 1.0f;\n        }\n")),
    tiled("division_dropped", "softmax-rescale", "rescale", CLASSIC, "tiled.cu",
          (_DIVIDE, "state.out[i][c] = sum == 0.0f ? weightless_out(largest) : state.out[i][c];")),
    # lse
    tiled("lse_of_empty_row_plus_infinity", "lse", "lse", "fa-978", "numbers.cuh",
          (_WEIGHTLESS_LSE, "return row_max == -infinity() ? infinity() : not_a_number();")),
    tiled("lse_of_empty_row_finite", "lse", "lse", "fi-4452", "numbers.cuh",
          (_WEIGHTLESS_LSE, "return row_max == -infinity() ? -5.0e4f : not_a_number();")),
    tiled("lse_of_empty_row_zero", "lse", "lse", "fi-440", "numbers.cuh",
          (_WEIGHTLESS_LSE, "return row_max == -infinity() ? 0.0f : not_a_number();")),
    tiled("lse_in_base_two", "lse", "lse", "pt-181645", "tiled.cu",
          (_LSE, "sum == 0.0f ? weightless_lse(largest) : (largest + logf(sum)) * 1.44269504f;")),
    tiled("lse_without_maximum", "lse", "lse", CLASSIC, "tiled.cu",
          (_LSE, "sum == 0.0f ? weightless_lse(largest) : logf(sum);")),
    tiled("lse_is_the_maximum", "lse", "lse", CLASSIC, "tiled.cu",
          (_LSE, "sum == 0.0f ? weightless_lse(largest) : largest;")),
    tiled("lse_mixes_bases", "lse", "lse", CLASSIC, "tiled.cu",
          (_LSE, "sum == 0.0f ? weightless_lse(largest) : largest + logf(sum) * 1.44269504f;")),
    tiled("lse_transposed", "lse", "layout", "vxpu-479", "pairs.cuh",
          ("return t.data + batch * t.batch + head * t.head + (start + static_cast<long long>(row)) * t.row;",
           "return t.data + batch * t.batch + head * t.row + (start + static_cast<long long>(row)) * t.head;"),
          direction="both"),
)  # fmt: skip
