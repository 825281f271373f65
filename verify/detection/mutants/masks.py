"""Mutants of visibility: tile edges, lengths, causal alignment, windows, tile ranges, block masks."""

from __future__ import annotations

from verify.detection.mutants.build import CLASSIC, tiled

_VISIBLE = "const bool visible = is_visible(p, s, head, row0 + row, col0 + col);"
_PHANTOM = "col0 + col >= s.k_length && row0 + row < s.q_length && !p.bias.data && !p.keep_mask.data"
_END_KEY = "return min(s.k_length, row + s.diagonal + p.band_right + 1);"
_FIRST_KEY = "return max(0, row + s.diagonal - p.band_left);"
_FIRST_QUERY = "return max(0, col - s.diagonal - p.band_right);"
_END_QUERY = "return min(s.q_length, col - s.diagonal + p.band_left + 1);"
_DIAGONAL = "s.diagonal = p.bottom_right ? s.k_length - s.q_length : 0;"
_FIRST_KEY_TILE = "return first_key(p, s, row) / TILE_K * TILE_K;"
_FIRST_QUERY_TILE = "return first_query(p, s, col) / TILE_Q * TILE_Q;"
_FORWARD_END = "start_softmax(state, sink_of(problem, head));\n    const int end = end_key_tile(problem, s, row0);"
_DQ_END = "float dq[MY_ROWS][MY_DIMS] = {};\n    const int end = end_key_tile(problem, s, row0);"
_KEY_LOOP = "\n    for (int col0 = first_key_tile(problem, s, row0); col0 < end; col0 += TILE_K) {"
_GRADIENT_VISIBLE = "if (!is_visible(p, s, head, row, col))"

MUTANTS = (
    tiled("tail_keys_unmasked", "mask-boundary", "tail", "jax-23349", "tiled.cu",
          (_VISIBLE, f"{_VISIBLE[:-1]} || ({_PHANTOM});")),
    tiled("tail_masked_only_when_causal", "mask-boundary", "tail", "fi-3716", "tiled.cu",
          (_VISIBLE, f"{_VISIBLE[:-1]} || ({_PHANTOM} && p.band_right != 0);")),
    tiled("tail_unmasked_beside_band", "mask-boundary", "tail", "cutlass-2428", "tiled.cu",
          (_VISIBLE, f"{_VISIBLE[:-1]} || ({_PHANTOM} && p.band_right == 0);")),
    tiled("tail_masked_by_half_tiles", "mask-boundary", "tail", "pt-196678", "tiled.cu",
          (_VISIBLE, f"{_VISIBLE[:-1]} || ({_PHANTOM} && "
                     "col0 + col < (s.k_length + TILE_K / 2 - 1) / (TILE_K / 2) * (TILE_K / 2));")),
    tiled("first_phantom_key_visible", "mask-boundary", "tail", "rocm-10309", "tiled.cu",
          (_VISIBLE, f"{_VISIBLE[:-1]} || ({_PHANTOM} && col0 + col == s.k_length);")),
    tiled("last_key_hidden", "mask-boundary", "tail", CLASSIC, "tiled.cu",
          (_VISIBLE, f"{_VISIBLE[:-1]} && col0 + col < s.k_length - 1;")),
    tiled("query_padding_visible", "mask-boundary", "memory", "cudnn-1072", "pairs.cuh",
          ("if (row >= s.q_length || col < first_key", "if (col < first_key"), direction="both"),
    tiled("rows_beyond_end_stored", "mask-boundary", "memory", "lc-7465", "tile.cuh",
          ("if (row >= end)\n            continue;", ""), direction="both"),
    tiled("lse_beyond_end_stored", "mask-boundary", "memory", "tinyfa-12", "tiled.cu",
          ("if (me.x == 0 && row < s.q_extent)", "if (me.x == 0)")),
    tiled("mask_transposed", "mask-boundary", "mask", "lucebox-128", "pairs.cuh",
          ("row * mask.row + col * mask.col]", "col * mask.row + row * mask.col]"), direction="both"),
    tiled("mask_shifted_by_one_key", "mask-boundary", "mask", "pt-153799", "pairs.cuh",
          ("!mask_keeps(p.keep_mask, s.batch, head, row, col))",
           "!mask_keeps(p.keep_mask, s.batch, head, row, max(col - 1, 0)))"), direction="both"),
    tiled("backward_tail_key_hidden", "mask-boundary", "gradient_tiles", "cudnn-160", "tiled.cu",
          (_GRADIENT_VISIBLE, "if (col == s.k_length - 1 || !is_visible(p, s, head, row, col))"), direction="backward"),
    # causal-alignment
    tiled("causal_top_left", "causal-alignment", "mask", "fa-282", "pairs.cuh",
          (_DIAGONAL, "s.diagonal = 0;"), direction="both"),
    tiled("causal_bottom_right_only", "causal-alignment", "mask", "mlx-2835", "pairs.cuh",
          (_DIAGONAL, "s.diagonal = s.k_length - s.q_length;"), direction="both"),
    tiled("causal_from_longest_lengths", "causal-alignment", "varlen", "cutlass-2336", "pairs.cuh",
          (_DIAGONAL, "s.diagonal = p.bottom_right ? p.seqlen_k - p.seqlen_q : 0;"), direction="both"),
    tiled("causal_from_allotted_lengths", "causal-alignment", "varlen", "ort-29020", "pairs.cuh",
          (_DIAGONAL, "s.diagonal = p.bottom_right ? s.k_extent - s.q_extent : 0;"), direction="both"),
    tiled("causal_end_from_query", "causal-alignment", "mask", "sparkinfer-3", "tile.cuh",
          ("? end_key(p, s, min(row + TILE_Q, s.q_length) - 1) : 0;",
           "? min(end_key(p, s, min(row + TILE_Q, s.q_length) - 1), p.band_right == 0 ? row + TILE_Q : s.k_length) : 0;"),
          direction="both"),
    tiled("window_from_other_corner", "causal-alignment", "mask", "rocmfa-158", "pairs.cuh",
          (_FIRST_KEY, "return max(0, row - p.band_left);"), direction="both"),
    # window
    tiled("causal_strict", "window", "mask", CLASSIC, "pairs.cuh",
          (_END_KEY, "return min(s.k_length, row + s.diagonal + p.band_right);"), direction="both"),
    tiled("right_edge_plus_one", "window", "mask", "te-3532", "pairs.cuh",
          (_END_KEY, "return min(s.k_length, row + s.diagonal + p.band_right + 2);"), direction="both"),
    tiled("left_edge_plus_one", "window", "mask", "hf-39408", "pairs.cuh",
          (_FIRST_KEY, "return max(0, row + s.diagonal - p.band_left + 1);"), direction="both"),
    tiled("left_edge_minus_one", "window", "mask", "ort-25927", "pairs.cuh",
          (_FIRST_KEY, "return max(0, row + s.diagonal - p.band_left - 1);"), direction="both"),
    tiled("left_edge_ignored", "window", "mask", "vllm-3385", "pairs.cuh",
          (_FIRST_KEY, "return 0;"), direction="both"),
    tiled("right_edge_ignored_in_windows", "window", "mask", "zml-763", "pairs.cuh",
          (_END_KEY, "return min(s.k_length, p.band_right > 0 ? s.k_length : row + s.diagonal + 1);"), direction="both"),
    tiled("first_key_tile_rounded_up", "window", "tile_range", "flagattn-25", "tile.cuh",
          (_FIRST_KEY_TILE, "return (first_key(p, s, row) + TILE_K - 1) / TILE_K * TILE_K;"), direction="both"),
    # tile-range
    tiled("key_tiles_by_floor", "tile-range", "tile_range", "txla-8671", "tiled.cu",
          (_FORWARD_END, f"{_FORWARD_END[:-1]} / TILE_K * TILE_K;")),
    tiled("key_loop_bound_from_queries", "tile-range", "tile_range", "sage-26", "tiled.cu",
          (_FORWARD_END, _FORWARD_END.replace("= end_key_tile(problem, s, row0)",
                                              "= min(end_key_tile(problem, s, row0), s.q_length)"))),
    tiled("key_range_of_first_row", "tile-range", "tile_range", "pt-141126", "tile.cuh",
          ("end_key(p, s, min(row + TILE_Q, s.q_length) - 1)", "end_key(p, s, row)"), direction="both"),
    tiled("first_key_tile_twice", "tile-range", "tile_range", CLASSIC, "tiled.cu",
          (_FORWARD_END, _FORWARD_END + "\n    const int first_tile = first_key_tile(problem, s, row0);"
                                        "\n    bool again = true;"),
          ("add_product<MY_ROWS, KEY_PITCH, 1>(state.out, scores, v_tile, min(TILE_K, s.k_length - col0), me);",
           "add_product<MY_ROWS, KEY_PITCH, 1>(state.out, scores, v_tile, min(TILE_K, s.k_length - col0), me);\n"
           "        if (col0 == first_tile && again) {\n            again = false;\n            col0 -= TILE_K;\n        }")),
    tiled("dq_key_tiles_by_floor", "tile-range", "gradient_tiles", "fa-2333", "tiled.cu",
          (_DQ_END, f"{_DQ_END[:-1]} / TILE_K * TILE_K;"), direction="backward"),
    tiled("dq_first_key_tile_skipped", "tile-range", "gradient_tiles", "diffusers-14265", "tiled.cu",
          (_DQ_END + _KEY_LOOP, _DQ_END + _KEY_LOOP.replace("row0);", "row0) + (end > TILE_K ? TILE_K : 0);")),
          direction="backward"),
    tiled("query_tiles_by_floor", "tile-range", "gradient_tiles", CLASSIC, "tiled.cu",
          ("row0 = first_query_tile(problem, s, col0); row0 < end;",
           "row0 = first_query_tile(problem, s, col0); row0 + TILE_Q <= end;"), direction="backward"),
    tiled("query_range_of_first_key", "tile-range", "gradient_tiles", "fa-2623", "tile.cuh",
          ("end_query(p, s, min(col + TILE_K, s.k_length) - 1)", "end_query(p, s, col)"), direction="backward"),
    tiled("first_query_tile_rounded_up", "tile-range", "gradient_tiles", "fa-2623", "tile.cuh",
          (_FIRST_QUERY_TILE, "return (first_query(p, s, col) + TILE_Q - 1) / TILE_Q * TILE_Q;"), direction="backward"),
    tiled("first_query_off_by_one", "tile-range", "gradient_tiles", CLASSIC, "pairs.cuh",
          (_FIRST_QUERY, "return max(0, col - s.diagonal - p.band_right + 1);"), direction="backward"),
    tiled("end_query_off_by_one", "tile-range", "gradient_tiles", CLASSIC, "pairs.cuh",
          (_END_QUERY, "return min(s.q_length, col - s.diagonal + p.band_left);"), direction="backward"),
    tiled("block_mask_of_first_block", "tile-range", "tile_range", "pt-171271", "tile.cuh",
          ("const int end_col = min(col + TILE_K, s.k_length);", "const int end_col = min(col + 1, s.k_length);"),
          direction="both"),
    tiled("block_mask_axes_swapped", "tile-range", "mask", "pt-136657", "pairs.cuh",
          ("head, row / p.block_rows, col / p.block_cols)", "head, row / p.block_cols, col / p.block_rows)"),
          direction="both"),
    # equivalent
    tiled("first_query_one_earlier", "tile-range", "gradient_tiles", "pt-136657", "pairs.cuh",
          (_FIRST_QUERY, "return max(0, col - s.diagonal - p.band_right - 1);"), direction="backward",
          equivalent="An earlier start only adds query tiles in which every pair of this key tile is hidden; a hidden "
                     "pair is skipped in both products, so no sum gains a term."),
    tiled("end_query_one_later", "tile-range", "gradient_tiles", "pt-136657", "pairs.cuh",
          (_END_QUERY, "return min(s.q_length, col - s.diagonal + p.band_left + 2);"), direction="backward",
          equivalent="A later end adds at most one query tile in which every pair is hidden; a hidden pair is skipped "
                     "in both products. The clamp to q_length stays."),
    tiled("query_tiles_start_at_key_tiles", "tile-range", "gradient_tiles", "pt-136657", "tile.cuh",
          (_FIRST_QUERY_TILE, "return first_query(p, s, col) / TILE_K * TILE_K;"), direction="backward",
          equivalent="The start becomes a lower multiple of TILE_K, still at or before the first visible query and still "
                     "a multiple of TILE_Q for the tiles in use; the tiles added hold hidden pairs only."),
    tiled("values_over_the_whole_tile", "mask-boundary", "tail", "fa-1745", "tiled.cu",
          ("(state.out, scores, v_tile, min(TILE_K, s.k_length - col0), me)", "(state.out, scores, v_tile, TILE_K, me)"),
          equivalent="Columns from k_length on were marked hidden by finish_logits, and add_product skips hidden "
                     "weights before it touches the value, which is a loaded zero anyway."),
)  # fmt: skip
