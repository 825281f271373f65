"""Mutants that lose precision: narrow probabilities, accumulators, exponentials and stores."""

from __future__ import annotations

from verify.detection.mutants.build import CLASSIC, tiled

_WEIGHT = "            score = expf(score - shift);\n            sum += score;\n"
_PRODUCT = "sum[i][c] += weight * term[c];"
_STORED_DOT = "products[(me.y + i * THREADS_Y) * KEY_PITCH + me.x + j * THREADS_X] = sum[i][j];"
_LOADED = "x = to_float(row_of(t, batch, start, first + row, head)[dim * t.dim]);"
_SUM = "state.row_sum[i] = state.row_sum[i] * rescale + row_sum(sum);"
_RESCALE = "const float rescale = expf(state.row_max[i] - shift);"
_LSE = "sum == 0.0f ? weightless_lse(largest) : largest + logf(sum);"
_PROB = "const float prob = expf(logit.value - lse);"
_PAIR = "return {prob * factor, dlogit, dlogit * logit.slope};"
_DLOGIT = "const float dlogit = prob * (factor * dprob - delta);"
_HALF_STORE = "*to = __float2half_rn(x);"
_BF16_STORE = "*to = __float2bfloat16_rn(x);"
_DELTA = "*value_of(p.delta, s.batch, s.q_start, row, head) = sum;"
_OUT = "state.out[i][c] = sum == 0.0f ? weightless_out(largest) : state.out[i][c] / sum;"


def _half(expression: str) -> str:
    return f"__half2float(__float2half_rn({expression}))"


def _bf16(expression: str) -> str:
    return f"__bfloat162float(__float2bfloat16_rn({expression}))"


MUTANTS = (
    tiled("probs_in_bf16", "precision", "precision", "triton-1821", "tiled.cu",
          (_WEIGHT, f"            score = {_bf16('expf(score - shift)')};\n            sum += score;\n")),
    tiled("probs_in_fp16_after_sum", "precision", "precision", CLASSIC, "tiled.cu",
          (_WEIGHT, f"            score = expf(score - shift);\n            sum += score;\n            score = {_half('score')};\n")),
    tiled("probs_in_8_bits", "precision", "precision", "fa-2577", "tiled.cu",
          (_WEIGHT, "            score = rintf(expf(score - shift) * 256.0f) / 256.0f;\n            sum += score;\n")),
    tiled("scores_in_fp16", "precision", "precision", CLASSIC, "tile.cuh",
          (_STORED_DOT, _STORED_DOT.replace("sum[i][j]", _half("sum[i][j]"))), direction="both"),
    tiled("scores_in_bf16", "precision", "precision", CLASSIC, "tile.cuh",
          (_STORED_DOT, _STORED_DOT.replace("sum[i][j]", _bf16("sum[i][j]"))), direction="both"),
    tiled("accumulator_in_fp16", "precision", "precision", "ikllama-1196", "tile.cuh",
          (_PRODUCT, f"sum[i][c] = {_half('sum[i][c] + weight * term[c]')};"), direction="both"),
    tiled("accumulator_in_bf16", "precision", "precision", "mlirair-1606", "tile.cuh",
          (_PRODUCT, f"sum[i][c] = {_bf16('sum[i][c] + weight * term[c]')};"), direction="both"),
    tiled("row_sum_in_fp16", "precision", "precision", "candle-3727", "tiled.cu",
          (_SUM, f"state.row_sum[i] = {_half('state.row_sum[i] * rescale + row_sum(sum)')};")),
    tiled("rescale_in_bf16", "precision", "precision", CLASSIC, "tiled.cu",
          (_RESCALE, f"const float rescale = {_bf16('expf(state.row_max[i] - shift)')};")),
    tiled("operands_in_tf32", "precision", "precision", "triton-1671", "tile.cuh",
          (_LOADED, f"x = __uint_as_float(__float_as_uint({_LOADED[4:-1]}) & 0xffffe000u);"), direction="both"),
    tiled("gradient_operands_in_tf32", "precision", "precision", "tritondocs-6", "tiled.cu",
          ("dot_rows(t.dscores, t.dout, t.v, p.head_dim_v, me);",
           "for (int at = threadIdx.x; at < TILE_Q * DIM_PITCH; at += THREADS)\n"
           "        t.dout[at] = __uint_as_float(__float_as_uint(t.dout[at]) & 0xffffe000u);\n    __syncthreads();\n"
           "    dot_rows(t.dscores, t.dout, t.v, p.head_dim_v, me);"), direction="backward"),
    tiled("log2e_of_four_digits", "precision", "precision", CLASSIC, "tiled.cu",
          (_WEIGHT, _WEIGHT.replace("expf(score - shift)", "exp2f((score - shift) * 1.443f)"))),
    tiled("exponential_flushed", "precision", "precision", CLASSIC, "tiled.cu",
          (_WEIGHT, _WEIGHT.replace("expf(score - shift)", "(score - shift < -8.0f ? 0.0f : expf(score - shift))"))),
    tiled("exponential_by_series", "precision", "precision", CLASSIC, "tiled.cu",
          (_WEIGHT, _WEIGHT.replace("expf(score - shift)", "powf(1.0f + (score - shift) / 64.0f > 0.0f ? 1.0f + "
                                                           "(score - shift) / 64.0f : 0.0f, 64.0f)"))),
    tiled("lse_in_fp16", "precision", "precision", "tract-2586", "tiled.cu",
          (_LSE, f"sum == 0.0f ? weightless_lse(largest) : {_half('largest + logf(sum)')};")),
    tiled("out_rounded_twice", "precision", "precision", CLASSIC, "tiled.cu",
          (_OUT, f"state.out[i][c] = {_bf16('sum == 0.0f ? weightless_out(largest) : state.out[i][c] / sum')};")),
    tiled("stores_truncate_bf16", "precision", "precision", CLASSIC, "numbers.cuh",
          (_BF16_STORE, "*to = __float2bfloat16_rz(x);"), direction="both"),
    tiled("stores_truncate_fp16", "precision", "precision", CLASSIC, "numbers.cuh",
          (_HALF_STORE, "*to = __float2half_rz(x);"), direction="both"),
    tiled("backward_probs_in_bf16", "precision", "precision", CLASSIC, "tiled.cu",
          (_PROB, f"const float prob = {_bf16('expf(logit.value - lse)')};"), direction="backward"),
    tiled("dscores_in_bf16", "precision", "precision", CLASSIC, "tiled.cu",
          (_PAIR, f"return {{prob * factor, dlogit, {_bf16('dlogit * logit.slope')}}};"), direction="backward"),
    tiled("dprobs_in_bf16", "precision", "precision", CLASSIC, "tiled.cu",
          (_DLOGIT, f"const float dlogit = prob * ({_bf16('factor * dprob')} - delta);"), direction="backward"),
    # below the rounding of a 16-bit output, or one element by a few units in its last place
    tiled("delta_in_fp16", "precision", "precision", CLASSIC, "row_passes.cuh",
          (_DELTA, _DELTA.replace("= sum", f"= {_half('sum')}")), direction="backward", below_rounding=True),
    tiled("one_element_4_ulp", "precision", "precision", CLASSIC, "tiled.cu",
          ("    store_rows(p.out, state.out, 1.0f,",
           "    if (blockIdx.x == 0 && threadIdx.x == 0)\n        state.out[0][0] *= 1.0f + 4.0f / 8388608.0f;\n"
           "    store_rows(p.out, state.out, 1.0f,"), below_rounding=True),
    tiled("log2e_last_digits", "precision", "precision", CLASSIC, "tiled.cu",
          (_WEIGHT, _WEIGHT.replace("expf(score - shift)", "exp2f((score - shift) * 1.4426951f)")), below_rounding=True),
)  # fmt: skip
