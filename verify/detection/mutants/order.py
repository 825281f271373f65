"""Mutants of the order of events: missing barriers, stale tiles, lost updates."""

from __future__ import annotations

from verify.detection.mutants.build import CLASSIC, tiled

_KEYS_LOADED = "load_keys(t, problem, s, kv_head_of(problem, head), col0);"
_QUERIES_LOADED = (
    "            load_queries(t, p, s, head, row0);\n            __syncthreads();  // read after write: K, V (first time)"
)
_PARTIAL = "partial[threadIdx.x] += partial[threadIdx.x + step];"


def _without(name: str, report: str, barrier: str, direction: str, file: str = "tiled.cu"):  # type: ignore[no-untyped-def]
    """A mutant without one barrier; the comment that names the hazard is the anchor."""
    return tiled(name, "race", "race", report, file, (barrier, ";" + barrier[barrier.index(";") + 1 :]), direction=direction)


MUTANTS = (
    _without("no_barrier_before_keys", "lc-13438", "__syncthreads();  // write after read: the last tile of K, V and P",
             "forward"),
    _without("no_barrier_after_keys", "lc-28358", "__syncthreads();  // read after write: Q (first time), K and V", "forward"),
    _without("no_warp_barrier_after_probs", "rtriton-953", "__syncwarp();  // read after write: a row of P", "forward"),
    _without("no_barrier_before_keys_of_dq", "lc-13438", "__syncthreads();  // write after read: the last tile of K, V and dS",
             "backward"),
    _without("no_barrier_after_keys_of_dq", "lc-28358", "__syncthreads();  // read after write: Q, dO, lse, delta",
             "backward"),
    _without("no_warp_barrier_after_dscores", "rtriton-953", "__syncwarp();  // read after write: a row of dS", "backward"),
    _without("no_barrier_before_queries", "fa-359", "__syncthreads();  // write after read: the last tile of Q, dO, P",
             "backward"),
    _without("no_barrier_after_queries", "fa-2481", "__syncthreads();  // read after write: K, V (first time), Q",
             "backward"),
    _without("no_barrier_before_column_sums", "fa-359", "__syncthreads();  // read after write: a column of P and dS",
             "backward"),
    _without("no_barrier_before_bias_tiles", "fi-5252", "__syncthreads();  // write after read: the last tiles are",
             "backward"),
    _without("no_barrier_after_bias_tiles", "fi-5252", "__syncthreads();  // read after write: all operands", "backward"),
    _without("no_barrier_before_bias_sums", "fi-5252", "__syncthreads();  // read after write: a thread sums", "backward"),
    _without("no_barrier_in_sink_sum", "cudnn-384", "__syncthreads();  // read after write: partial sums", "backward",
             "row_passes.cuh"),
    tiled("sink_updates_lost", "race", "sink_gradient", "cudnn-384", "row_passes.cuh",
          (_PARTIAL, "partial[threadIdx.x] = partial[threadIdx.x + step];"), direction="backward"),
    # aliasing-stale
    tiled("first_key_tile_for_all", "aliasing-stale", "gradient_tiles", "diffusers-14265", "tiled.cu",
          (_KEYS_LOADED, f"if (col0 == first_key_tile(problem, s, row0))\n            {_KEYS_LOADED}"),
          direction="backward"),
    tiled("queries_of_first_tile_for_all", "aliasing-stale", "gradient_tiles", "art-648", "tiled.cu",
          (_QUERIES_LOADED, _QUERIES_LOADED.replace(
              "            load_queries", "            if (row0 == first_query_tile(problem, s, col0))\n                load_queries")),
          direction="backward"),
    tiled("values_of_previous_tile", "aliasing-stale", "tile_range", "fa-2754", "tiled.cu",
          ("load_tile<TILE_K>(v_tile, problem.v, s.batch, s.k_start, kv_head, col0,",
           "load_tile<TILE_K>(v_tile, problem.v, s.batch, s.k_start, kv_head, max(col0 - TILE_K, 0),")),
    tiled("sum_of_previous_row_kept", "aliasing-stale", "rescale", CLASSIC, "tiled.cu",
          ("    float sum = 0.0f;\n#pragma unroll\n    for (int j = 0; j < MY_COLS; ++j) {\n        float& score",
           "    float sum = i > 0 ? 0.001f * state.row_sum[i - 1] : 0.0f;\n#pragma unroll\n"
           "    for (int j = 0; j < MY_COLS; ++j) {\n        float& score")),
)  # fmt: skip
