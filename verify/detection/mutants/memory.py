"""Mutants of addresses: strides, offsets of ragged batches, head dims, index widths, elements never written."""

from __future__ import annotations

from verify.detection.mutants.build import CLASSIC, tiled

_ROW = "batch * t.batch + (start + static_cast<long long>(row)) * t.seq + head * t.head;"
_LOADED = "x = to_float(row_of(t, batch, start, first + row, head)[dim * t.dim]);"
_V_LOAD = "load_tile<TILE_K>(v_tile, problem.v, s.batch"
_K_LOAD = "load_tile<TILE_K>(k_tile, problem.k, s.batch, s.k_start, kv_head, col0, s.k_length, problem.head_dim);"
_V_DIMS = "kv_head, col0, s.k_length, problem.head_dim_v);"
_DOUT_LOAD = "load_tile<TILE_Q>(t.dout, p.dout, s.batch"
_DELTA_DOUT = "const Scalar* dout = row_of(p.dout, s.batch, s.q_start, row, head);"
_OUT_STORE = "s.batch, s.q_start, head, row0, s.q_extent, problem.head_dim_v, me);"
_DQ_STORE = "store_rows(p.dq, dq,"
_DK_STORE = "store_rows(p.dk, dk, problem.softmax_scale, s.batch, s.k_start, kv_head, col0, s.k_extent,"
_DV_STORE = "store_rows(p.dv, dv, 1.0f, s.batch, s.k_start, kv_head, col0, s.k_extent, problem.head_dim_v, me);"
_Q_START = "s.q_start = p.cu_seqlens_q ? p.cu_seqlens_q[batch] : 0;"
_K_START = "s.k_start = p.cu_seqlens_k ? p.cu_seqlens_k[batch] : 0;"
_Q_EXTENT = "p.cu_seqlens_q ? min(p.cu_seqlens_q[batch + 1] - s.q_start, p.seqlen_q) : p.seqlen_q;"
_K_EXTENT = "p.cu_seqlens_k ? min(p.cu_seqlens_k[batch + 1] - s.k_start, p.seqlen_k) : p.seqlen_k;"
_K_LENGTH = "p.seqlens_k ? min(p.seqlens_k[batch], s.k_extent) : s.k_extent;"
_SCORES = "dot_rows(scores, q_tile, k_tile, problem.head_dim, me);"
_DPROBS = "dot_rows(t.dscores, t.dout, t.v, p.head_dim_v, me);"
_DKDV_LEAVES = "if (col0 >= s.k_extent)"
_OUT_ZERO = "            state.out[i][c] = 0.0f;\n"
_LSE_STORE = "if (me.x == 0 && row < s.q_extent)"


def _view(data: str, strides: str) -> str:
    return f"TensorView{{{data}.data, {strides}.batch, {strides}.seq, {strides}.head, {strides}.dim}}"


MUTANTS = (
    # layout-stride
    tiled("row_and_head_strides_swapped", "layout-stride", "layout", "pt-181133", "pairs.cuh",
          (_ROW, "batch * t.batch + (start + static_cast<long long>(row)) * t.head + head * t.seq;"), direction="both"),
    tiled("batch_stride_zero", "layout-stride", "layout", "pt-194167", "pairs.cuh",
          (_ROW, "(start + static_cast<long long>(row)) * t.seq + head * t.head;"), direction="both"),
    tiled("last_axis_assumed_dense", "layout-stride", "layout", "spyre-4331", "tile.cuh",
          (_LOADED, _LOADED.replace("[dim * t.dim]", "[dim]")), direction="both"),
    tiled("rows_assumed_dense", "layout-stride", "layout", "pt-163597", "tile.cuh",
          (_LOADED, "x = to_float((row_of(t, batch, start, first, head) + row * (t.seq < 2 * t.head ? t.seq : t.head * "
                    "(t.seq / t.head)))[dim * t.dim]);"), direction="both"),
    tiled("values_with_strides_of_keys", "layout-stride", "layout", "flaggems-5896", "tiled.cu",
          (_V_LOAD, f"load_tile<TILE_K>(v_tile, {_view('problem.v', 'problem.k')}, s.batch")),
    tiled("dout_with_strides_of_out", "layout-stride", "layout", "fa-355", "tiled.cu",
          (_DOUT_LOAD, f"load_tile<TILE_Q>(t.dout, {_view('p.dout', 'p.out')}, s.batch"), direction="backward"),
    tiled("delta_with_strides_of_out", "layout-stride", "layout", "xf-282", "row_passes.cuh",
          (_DELTA_DOUT, f"const Scalar* dout = row_of({_view('p.dout', 'p.out')}, s.batch, s.q_start, row, head);"),
          direction="backward"),
    tiled("dq_with_strides_of_q", "layout-stride", "layout", "rocmfa-122", "tiled.cu",
          (_DQ_STORE, f"store_rows({_view('p.dq', 'problem.q')}, dq,"), direction="backward"),
    tiled("dk_with_strides_of_k", "layout-stride", "layout", "fa-2541", "tiled.cu",
          (_DK_STORE, _DK_STORE.replace("p.dk,", f"{_view('p.dk', 'problem.k')},")), direction="backward"),
    tiled("mask_of_first_head", "layout-stride", "mask", "pt-191937", "pairs.cuh",
          ("data[batch * mask.batch + head * mask.head +", "data[batch * mask.batch +"), direction="both"),
    tiled("mask_of_first_batch", "layout-stride", "mask", "lc-24912", "pairs.cuh",
          ("data[batch * mask.batch + head * mask.head +", "data[head * mask.head +"), direction="both"),
    tiled("mask_rows_assumed_dense", "layout-stride", "mask", "ikllama-2087", "pairs.cuh",
          ("row * mask.row + col * mask.col] != 0", "row * (mask.row > 1 ? mask.row - 1 : mask.row) + col * mask.col] != 0"),
          direction="both"),
    tiled("bias_axes_swapped", "layout-stride", "score", CLASSIC, "pairs.cuh",
          ("row * p.bias.row + col * p.bias.col;", "col * p.bias.row + row * p.bias.col;"), direction="both"),
    tiled("bias_of_first_batch", "layout-stride", "score", "flashdeberta-11", "pairs.cuh",
          ("= batch * p.bias.batch + head * p.bias.head", "= head * p.bias.head"), direction="both"),
    # index-overflow: the narrow types stand for 16 and 32 bits at sizes that a test can hold
    tiled("row_offset_in_32_bits", "index-overflow", "layout", "fa-2611", "pairs.cuh",
          (_ROW, "batch * t.batch + static_cast<int>((start + static_cast<long long>(row)) * t.seq) + head * t.head;"),
          direction="both"),
    tiled("batch_offset_in_16_bits", "index-overflow", "layout", "fa-1500", "pairs.cuh",
          (_ROW, "static_cast<unsigned short>(batch * t.batch) + (start + static_cast<long long>(row)) * t.seq + "
                 "head * t.head;"), direction="both"),
    tiled("row_offset_in_12_bits", "index-overflow", "layout", "fa-2214", "pairs.cuh",
          (_ROW, "batch * t.batch + (((start + static_cast<long long>(row)) * t.seq) & 4095) + head * t.head;"),
          direction="both"),
    tiled("key_index_in_6_bits", "index-overflow", "tile_range", "xf-719", "tiled.cu",
          (_K_LOAD, _K_LOAD.replace("kv_head, col0,", "kv_head, col0 & 63,"))),
    tiled("key_tile_counter_in_7_bits", "index-overflow", "tile_range", "pt-162588", "tiled.cu",
          ("start_softmax(state, sink_of(problem, head));\n    const int end = end_key_tile(problem, s, row0);",
           "start_softmax(state, sink_of(problem, head));\n    const int end = end_key_tile(problem, s, row0) & 127;")),
    tiled("mask_offset_in_8_bits", "index-overflow", "mask", "fa2mask-2", "pairs.cuh",
          ("data[batch * mask.batch + head * mask.head + row * mask.row + col * mask.col]",
           "data[batch * mask.batch + head * mask.head + ((row * mask.row) & 255) + col * mask.col]"), direction="both"),
    # varlen-offset
    tiled("query_start_of_previous_sequence", "varlen-offset", "varlen", "fa-2194", "pairs.cuh",
          (_Q_START, "s.q_start = p.cu_seqlens_q ? p.cu_seqlens_q[max(batch - 1, 0)] : 0;"), direction="both"),
    tiled("key_start_from_queries", "varlen-offset", "varlen", CLASSIC, "pairs.cuh",
          (_K_START, "s.k_start = p.cu_seqlens_k ? min(p.cu_seqlens_q[batch], p.cu_seqlens_k[batch]) : 0;"),
          direction="both"),
    tiled("key_extent_from_longest", "varlen-offset", "varlen", "fa-2167", "pairs.cuh",
          (_K_EXTENT, "p.cu_seqlens_k ? min(p.seqlen_k, p.cu_seqlens_k[p.batch] - s.k_start) : p.seqlen_k;"),
          direction="both"),
    tiled("query_extent_from_longest", "varlen-offset", "varlen", "fa-1155", "pairs.cuh",
          (_Q_EXTENT, "p.cu_seqlens_q ? min(p.seqlen_q, p.cu_seqlens_q[p.batch] - s.q_start) : p.seqlen_q;"),
          direction="both"),
    tiled("key_lengths_ignored", "varlen-offset", "varlen", "te-3331", "pairs.cuh",
          (_K_LENGTH, "s.k_extent;"), direction="both"),
    tiled("key_lengths_of_first_sequence", "varlen-offset", "varlen", "jax-30023", "pairs.cuh",
          (_K_LENGTH, "p.seqlens_k ? min(p.seqlens_k[0], s.k_extent) : s.k_extent;"), direction="both"),
    tiled("key_length_rounded_up", "varlen-offset", "varlen", "te-2186", "pairs.cuh",
          (_K_LENGTH, "p.seqlens_k ? min((p.seqlens_k[batch] + 7) / 8 * 8, s.k_extent) : s.k_extent;"),
          direction="both"),
    # head-dim
    tiled("dv_stored_with_head_dim", "head-dim", "head_dim", "fa-2552", "tiled.cu",
          (_DV_STORE, _DV_STORE.replace("problem.head_dim_v", "min(problem.head_dim, problem.head_dim_v)")),
          direction="backward"),
    tiled("values_loaded_with_head_dim", "head-dim", "head_dim", "triton-621", "tiled.cu",
          (_V_DIMS, _V_DIMS.replace("problem.head_dim_v", "min(problem.head_dim, problem.head_dim_v)"))),
    tiled("out_stored_in_16_columns", "head-dim", "head_dim", "triton-621", "tiled.cu",
          (f"store_rows(p.out, state.out, 1.0f, {_OUT_STORE}",
           f"store_rows(p.out, state.out, 1.0f, {_OUT_STORE.replace('problem.head_dim_v', 'min(problem.head_dim_v, 16)')}")),
    tiled("scores_over_multiple_of_8", "head-dim", "head_dim", "fa-2896", "tiled.cu",
          (_SCORES, _SCORES.replace("problem.head_dim", "problem.head_dim / 8 * 8"))),
    tiled("dprobs_over_head_dim", "head-dim", "head_dim", "fa-2552", "tiled.cu",
          (_DPROBS, _DPROBS.replace("p.head_dim_v", "min(p.head_dim, p.head_dim_v)")), direction="backward"),
    tiled("padding_dims_read", "head-dim", "memory", "fa-2896", "tile.cuh",
          ("if (first + row < end && dim < dims)", "if (first + row < end)"), direction="both"),
    # uninit-memory
    tiled("dk_padding_unwritten", "uninit-memory", "unwritten", "fla-892", "tiled.cu",
          (_DK_STORE, _DK_STORE.replace("s.k_extent", "s.k_length")), direction="backward"),
    tiled("dk_dv_of_empty_queries_unwritten", "uninit-memory", "unwritten", "fa-2562", "tiled.cu",
          (_DKDV_LEAVES, "if (col0 >= s.k_extent || s.q_length == 0)"), direction="backward"),
    tiled("dk_dv_of_unseen_keys_unwritten", "uninit-memory", "unwritten", "pt-188933", "tiled.cu",
          (_DKDV_LEAVES, "if (col0 >= s.k_extent || end_query_tile(problem, s, col0) <= first_query_tile(problem, s, col0))"),
          direction="backward"),
    tiled("lse_of_tail_rows_unwritten", "uninit-memory", "unwritten", "tilelang-2461", "tiled.cu",
          (_LSE_STORE, "if (me.x == 0 && row < s.q_extent / TILE_Q * TILE_Q)")),
    tiled("accumulator_not_cleared", "uninit-memory", "unwritten", "fa-752", "tiled.cu",
          (_OUT_ZERO, "            state.out[i][c] = 0.001f;\n")),
)  # fmt: skip
