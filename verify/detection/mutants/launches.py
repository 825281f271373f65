"""Mutants of the launcher: arguments dropped, passes missing or out of order, grids too small, state between calls."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kernels.backend import Launch
from kernels.kernel import Grid, Kernel, Pass
from kernels.problem import UNBOUNDED
from verify.detection.mutant import KernelPatch, LaunchPatch, Mutant

_FORWARD = ("tiled_forward",)
_BACKWARD = ("tiled_dkdv", "tiled_dq", "tiled_dbias")


def _edited(entries: tuple[str, ...], edit: Callable[[Any], None]) -> Callable[[], LaunchPatch]:
    """Edits the parameter struct of the named entry points; no name = of all."""

    def make() -> LaunchPatch:
        def patch(launch: Launch) -> Launch:
            if entries and launch.entry not in entries:
                return launch
            params = launch.params.copy()
            edit(params)
            return replace(launch, params=params)

        return patch

    return make


def _cleared(*fields: str) -> Callable[[Any], None]:
    """Sets fields of the problem struct to zero, that is to "not given"."""

    def edit(params: Any) -> None:
        for field in fields:
            params["problem"][field] = 0

    return edit


def _without_data(field: str) -> Callable[[Any], None]:
    def edit(params: Any) -> None:
        params["problem"][field]["data"] = 0

    return edit


def _acausal(params: Any) -> None:
    if params["problem"]["band_right"] == 0:
        params["problem"]["band_right"] = UNBOUNDED


def _windowless(params: Any) -> None:
    params["problem"]["band_left"] = UNBOUNDED


def _causal(params: Any) -> None:
    params["problem"]["band_right"] = 0


def _default_scale(params: Any) -> None:
    params["problem"]["softmax_scale"] = 1.0 / math.sqrt(params["problem"]["head_dim"])


def _without_dlse(params: Any) -> None:
    params["dlse"]["data"] = 0


def _one_batch(params: Any) -> None:
    params["problem"]["seqlens_k"] = 0


def _fewer_blocks(entries: tuple[str, ...], axis: int, count: Callable[[int], int]) -> Callable[[], LaunchPatch]:
    def make() -> LaunchPatch:
        def patch(launch: Launch) -> Launch | None:
            if launch.entry not in entries:
                return launch
            grid = list(launch.grid)
            grid[axis] = count(grid[axis])
            return replace(launch, grid=(grid[0], grid[1], grid[2])) if min(grid) > 0 else None

        return patch

    return make


def _skipping(entry: str) -> Callable[[], LaunchPatch]:
    return lambda: lambda launch: None if launch.entry == entry else launch


def _scale_alternates() -> LaunchPatch:
    """Every second forward has a scale one unit in the last place larger: values that depend on placement."""
    state = {"calls": 0}

    def patch(launch: Launch) -> Launch:
        if launch.entry not in _FORWARD:
            return launch
        state["calls"] += 1
        params = launch.params.copy()
        if state["calls"] % 2 == 0:
            params["problem"]["softmax_scale"] *= 1 + 2.0**-22
        return replace(launch, params=params)

    return patch


def _options_of_first_call() -> LaunchPatch:
    """Options cached by shape alone: a later call with the same shapes gets those of the first."""
    kept: dict[tuple[int, ...], dict[str, Any]] = {}
    names = ("softmax_scale", "softcap", "band_left", "band_right", "bottom_right")

    def patch(launch: Launch) -> Launch:
        params = launch.params.copy()
        problem = params["problem"]
        key = tuple(int(problem[name]) for name in ("batch", "nheads", "nheads_kv", "seqlen_q", "seqlen_k"))
        first = kept.setdefault(key, {name: problem[name].copy() for name in names})
        for name, value in first.items():
            problem[name] = value
        return replace(launch, params=params)

    return patch


def _every_third_call_stale() -> LaunchPatch:
    """Every third forward is not launched: the outputs are what the memory held."""
    state = {"calls": 0}

    def patch(launch: Launch) -> Launch | None:
        state["calls"] += launch.entry in _FORWARD
        return None if launch.entry in _FORWARD and state["calls"] % 3 == 0 else launch

    return patch


def _delta_last(kernel: Kernel) -> Kernel:
    first, *others = kernel.backward.passes
    return replace(kernel, backward=replace(kernel.backward, passes=(*others, first)))


def _key_grid_by_query_heads(kernel: Kernel) -> Kernel:
    passes = tuple(
        replace(step, grid=Grid.QUERY_TILES) if step.entry == "tiled_dkdv" else step for step in kernel.backward.passes
    )
    return replace(kernel, backward=replace(kernel.backward, passes=passes))


def _bias_pass_needs_sink(kernel: Kernel) -> Kernel:
    def needs(step: Pass) -> Pass:
        return replace(step, needs="sink") if step.entry == "tiled_dbias" else step

    passes = tuple(needs(step) for step in kernel.backward.passes)
    return replace(kernel, backward=replace(kernel.backward, passes=passes))


def _launch(name: str, kind: str, cause: str, report: str, patch: Callable[[], LaunchPatch], direction: str) -> Mutant:
    return Mutant(name=name, kernel="cuda_tiled", kind=kind, direction=direction, cause=cause, report=report,
                  launch_patch=patch)  # fmt: skip


def _described(name: str, kind: str, cause: str, report: str, patch: KernelPatch, direction: str) -> Mutant:
    return Mutant(name=name, kernel="cuda_tiled", kind=kind, direction=direction, cause=cause, report=report,
                  kernel_patch=patch)  # fmt: skip


MUTANTS = (
    _launch("causal_dropped", "dispatch", "mask", "jax-19237", _edited((), _acausal), "both"),
    _launch("mask_dropped", "dispatch", "mask", "fi-441", _edited((), _without_data("keep_mask")), "both"),
    _launch("block_mask_dropped", "dispatch", "mask", "fa-746", _edited((), _without_data("block_mask")), "both"),
    _launch("bias_dropped", "dispatch", "score", "fi-441", _edited(_FORWARD, _without_data("bias")), "forward"),
    _launch("softcap_dropped", "dispatch", "score", "fi-1023", _edited((), _cleared("softcap")), "both"),
    _launch("scale_dropped", "dispatch", "scale", "pt-174361", _edited((), _default_scale), "both"),
    _launch("alibi_dropped", "dispatch", "score", "fi-1023", _edited((), _cleared("alibi_slopes")), "both"),
    _launch("dropout_dropped", "dispatch", "dropout", "fa-746", _edited((), _cleared("drop_below")), "both"),
    _launch("key_lengths_dropped", "dispatch", "varlen", "ckpr-3730", _edited((), _one_batch), "both"),
    _launch(
        "window_dropped_in_backward",
        "bwd-mismatch",
        "bwd_mismatch",
        "mslk-263",
        _edited(_BACKWARD, _windowless),
        "backward",
    ),
    _launch(
        "causal_dropped_in_backward",
        "bwd-mismatch",
        "bwd_mismatch",
        "mslk-263",
        _edited(_BACKWARD, _acausal),
        "backward",
    ),
    _launch(
        "causal_forced_in_backward",
        "bwd-mismatch",
        "bwd_mismatch",
        "triton-5660",
        _edited(_BACKWARD, _causal),
        "backward",
    ),
    _launch(
        "softcap_dropped_in_backward",
        "bwd-mismatch",
        "bwd_mismatch",
        "fa-2101",
        _edited(_BACKWARD, _cleared("softcap")),
        "backward",
    ),
    _launch(
        "alibi_dropped_in_backward",
        "bwd-mismatch",
        "bwd_mismatch",
        "fa-2101",
        _edited(_BACKWARD, _cleared("alibi_slopes")),
        "backward",
    ),
    _launch(
        "dropout_dropped_in_backward",
        "bwd-mismatch",
        "dropout",
        "pt-190717",
        _edited(_BACKWARD, _cleared("drop_below")),
        "backward",
    ),
    _launch("dlse_dropped", "dispatch", "dlse", "fa-2101", _edited(("backward_delta",), _without_dlse), "backward"),
    _launch(
        "one_query_tile_only", "dispatch", "unwritten", "fa-1537", _fewer_blocks(_FORWARD, 0, lambda n: 1), "forward"
    ),
    _launch(
        "last_query_tile_not_launched",
        "tile-range",
        "unwritten",
        "txla-8671",
        _fewer_blocks(_FORWARD, 0, lambda n: max(n - 1, 1)),
        "forward",
    ),
    _launch(
        "last_head_not_launched",
        "dispatch",
        "unwritten",
        "fi-3125",
        _fewer_blocks(_FORWARD, 1, lambda n: max(n - 1, 1)),
        "forward",
    ),
    _launch("first_batch_only", "dispatch", "unwritten", "fa-1537", _fewer_blocks(_FORWARD, 2, lambda n: 1), "forward"),
    _launch(
        "last_key_tile_not_launched",
        "uninit-memory",
        "unwritten",
        "pt-188933",
        _fewer_blocks(("tiled_dkdv",), 0, lambda n: max(n - 1, 1)),
        "backward",
    ),
    _launch("forward_not_launched", "dispatch", "unwritten", "ckpr-3730", _skipping("tiled_forward"), "forward"),
    _launch("dq_not_launched", "uninit-memory", "unwritten", "tilelang-2461", _skipping("tiled_dq"), "backward"),
    _launch("delta_not_launched", "uninit-memory", "delta", "tilelang-2461", _skipping("backward_delta"), "backward"),
    _launch(
        "sink_gradient_not_launched", "uninit-memory", "unwritten", "te-3551", _skipping("backward_sink"), "backward"
    ),
    _launch("value_depends_on_placement", "nondeterminism", "state", "pt-182593", _scale_alternates, "forward"),
    _launch("launch_sometimes_lost", "nondeterminism", "state", "fa-429", _every_third_call_stale, "forward"),
    _launch("options_cached_by_shape", "aliasing-stale", "state", "fi-4270", _options_of_first_call, "both"),
    _described("delta_computed_last", "aliasing-stale", "delta", "tilelang-547", _delta_last, "backward"),
    _described("key_grid_by_query_tiles", "tile-range", "unwritten", "pt-136657", _key_grid_by_query_heads, "backward"),
    _described(
        "bias_gradient_only_beside_a_sink", "dispatch", "unwritten", "ckpr-3730", _bias_pass_needs_sink, "backward"
    ),
)
