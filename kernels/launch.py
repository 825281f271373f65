"""Forward and backward of a kernel on a backend: one call surface for NumPy arrays (CPU) and CuPy arrays (GPU).

Checks, picks the tile, allocates what the caller did not supply, and issues the passes. Results are never inspected.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.backend import Array, Backend, Launch, Module, Operand
from kernels.geometry import grid_of
from kernels.kernel import CUDA_DIR, STORAGE_TYPES, Direction, Kernel, Pass, Tile
from kernels.options import Options
from kernels.params import BACKWARD_PARAMS, DROPOUT_MASK_PARAMS, FORWARD_PARAMS, PAIR_AXES, ROW_AXES, fill_view
from kernels.problem import (
    Sizes,
    check_options,
    fill_dropout,
    fill_problem,
    fill_tensor,
    option_operands,
    require_dtype,
    require_shape,
    resolve_sizes,
    storage_dtype,
)
from kernels.tiles import check_tile, default_tile, head_dim_bucket, shared_bytes

NO_OPTIONS = Options()
_MASK_THREADS = 128


def forward(
    kernel: Kernel,
    backend: Backend,
    q: Array,
    k: Array,
    v: Array,
    *,
    options: Options = NO_OPTIONS,
    out: Array | None = None,
    lse: Array | None = None,
    tile: Tile | None = None,
    workspace: Mapping[str, Array] | None = None,
) -> tuple[Array, Array]:
    """Attention of one batch.

    Parameters
    ----------
    q : storage dtype (batch, seqlen_q, nheads, head_dim), any strides; (total_q, nheads, head_dim) when packed
    k : storage dtype (batch, seqlen_k, nheads_kv, head_dim), or (total_k, nheads_kv, head_dim)
    v : storage dtype (batch, seqlen_k, nheads_kv, head_dim_v), or (total_k, nheads_kv, head_dim_v)
    options : everything else that the result depends on
    out : storage dtype like q with head_dim_v, any strides; written if given, else allocated
    lse : fp32 (batch, nheads, seqlen_q), or (nheads, total_q) when packed, any strides; likewise
    tile : None = the preferred one that fits the backend's architecture
    workspace : see `workspace_shapes`; None allocates

    Returns
    -------
    out, lse
        lse is the natural log of the softmax denominator, sink included. A row without a visible key gives out = 0
        and lse = -inf, or the sink.

    Raises
    ------
    ValueError
        Shapes, dtypes or options that contradict each other; a tile that does not fit (`TileError`).
    RuntimeError
        The backend could not compile or launch.
    """
    sizes = _checked_sizes(kernel, backend, q, k, v, options)
    out = _output(backend, "out", out, sizes.out_shape, q.dtype)
    lse = _output(backend, "lse", lse, sizes.lse_shape, np.dtype(np.float32))
    plan = _plan(kernel, backend, "forward", sizes, q, tile)
    scratch = _workspaces(kernel.forward, backend, sizes, workspace)
    params = np.zeros((), FORWARD_PARAMS)
    fill_problem(params["problem"], backend, sizes, q, k, v, options)
    fill_tensor(params["out"], backend, out, packed=sizes.packed)
    fill_view(params["lse"], backend, lse, _row_axes(sizes))
    _fill_scratch(params, backend, scratch)
    operands = (*_inputs(q=q, k=k, v=v), *option_operands(options), *_outputs(out=out, lse=lse))
    plan.run(params, operands, scratch, given=())
    return out, lse


def backward(
    kernel: Kernel,
    backend: Backend,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    dout: Array,
    *,
    options: Options = NO_OPTIONS,
    dlse: Array | None = None,
    grads: Mapping[str, Array] | None = None,
    tile: Tile | None = None,
    workspace: Mapping[str, Array] | None = None,
) -> dict[str, Array]:
    """Gradients of <dout, out> + <dlse, lse>.

    Parameters
    ----------
    q, k, v, options, tile, workspace : as in `forward`
    out, lse : what `forward` returned
    dout : storage dtype, shape of out, any strides
    dlse : fp32, shape of lse, any strides; None = zero
    grads : destinations by name, any strides; those not given are allocated

    Returns
    -------
    dict
        dq, dk, dv in the shapes and dtype of q, k, v; where the options have them, dbias like the bias (summed over its
        size-1 axes) and dsink like the sink.

    Raises
    ------
    ValueError, RuntimeError
        As in `forward`.

    Notes
    -----
    Fully masked rows, hidden keys and padding get exactly 0.
    """
    sizes = _checked_sizes(kernel, backend, q, k, v, options)
    require_shape("out", out, sizes.out_shape)
    require_shape("dout", dout, sizes.out_shape)
    for name, array in (("out", out), ("dout", dout)):
        require_dtype(name, array, str(q.dtype))
    for name, array in (("lse", lse), ("dlse", dlse)):
        if array is not None:
            require_shape(name, array, sizes.lse_shape)
            require_dtype(name, array, "float32")
    results = _gradients(backend, q, k, v, options, grads or {})
    plan = _plan(kernel, backend, "backward", sizes, q, tile)
    scratch = _workspaces(kernel.backward, backend, sizes, workspace)
    params = np.zeros((), BACKWARD_PARAMS)
    fill_problem(params["problem"], backend, sizes, q, k, v, options)
    for name, array in (("out", out), ("dout", dout), *((n, results[n]) for n in ("dq", "dk", "dv"))):
        fill_tensor(params[name], backend, array, packed=sizes.packed)
    for name, array in (("lse", lse), ("dlse", dlse), ("delta", scratch["delta"])):
        fill_view(params[name], backend, array, _row_axes(sizes))
    fill_view(params["dbias"], backend, results.get("dbias"), PAIR_AXES)
    for name, size in zip(("bias_batch", "bias_heads", "bias_rows", "bias_cols"), sizes.bias, strict=True):
        params[name] = size
    if "dsink" in results:
        params["dsink"] = backend.address(results["dsink"])
        params["dsink_head"] = results["dsink"].strides[0] // results["dsink"].dtype.itemsize
    _fill_scratch(params, backend, {name: array for name, array in scratch.items() if name != "delta"})
    inputs = _inputs(q=q, k=k, v=v, out=out, lse=lse, dout=dout, dlse=dlse)
    operands = (*inputs, *option_operands(options), *_outputs(**results))
    given = tuple(name for name in ("bias", "sink") if getattr(options, name) is not None)
    plan.run(params, operands, scratch, given=given)
    return results


def dropout_mask(
    backend: Backend, dropout_p: float, shape: tuple[int, int, int, int], *, seed: int, offset: int = 0
) -> Array:
    """The mask that forward and backward draw: uint8 (batch, nheads, seqlen_q, seqlen_k), 1 = kept."""
    batch, nheads, seqlen_q, seqlen_k = shape
    keep = backend.empty(shape, np.dtype(np.uint8))
    params = np.zeros((), DROPOUT_MASK_PARAMS)
    fill_view(params["keep"], backend, keep, PAIR_AXES)
    params["nheads"], params["seqlen_q"], params["seqlen_k"] = nheads, seqlen_q, seqlen_k
    fill_dropout(params, dropout_p, seed, offset)
    grid = (-(-seqlen_q * seqlen_k // _MASK_THREADS), nheads, batch)
    if min(grid) > 0:
        backend.launch(
            Launch(
                module=Module(
                    source=CUDA_DIR / "dropout_mask.cu",
                    entries=("dropout_mask",),
                    defines={"THREADS": _MASK_THREADS},
                ),
                entry="dropout_mask",
                grid=grid,
                block=_MASK_THREADS,
                shared_bytes=0,
                params=params,
                operands=_outputs(keep=keep),
            )
        )
    return keep


def workspace_shapes(kernel: Kernel, direction: str, sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """fp32 scratch arrays that the direction needs: name -> shape. They must be contiguous."""
    return _scratch_shapes(kernel.direction(direction), sizes)


def module_of(kernel: Kernel, dtype: str, bucket: int, tile: Tile) -> Module:
    """The compiled variant for a storage dtype, head-dim bucket (0 = none) and tile."""
    defines: dict[str, str | int] = {"STORAGE": STORAGE_TYPES[dtype], "THREADS": tile.threads}
    if bucket:
        defines |= {"HEAD_DIM_BUCKET": bucket, "TILE_Q": tile.q, "TILE_K": tile.k}
    return Module(source=kernel.source, entries=kernel.entries, defines=defines)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """Everything about a direction that does not depend on addresses."""

    backend: Backend
    direction: Direction
    module: Module
    tile: Tile
    bucket: int
    sizes: Sizes

    def run(
        self,
        params: NDArray[np.void],
        operands: tuple[Operand, ...],
        scratch: Mapping[str, Array],
        given: tuple[str, ...],
    ) -> None:
        """Issue the passes in order; scratch memory counts as written once a pass has run."""
        steps = [step for step in self.direction.passes if step.needs is None or step.needs in given]
        grids = [self._grid(step) for step in steps]
        written = False
        for step, grid in zip(steps, grids, strict=True):
            if min(grid) == 0:
                continue
            memory = tuple(
                Operand(name=name, array=array, writable=True, initialised=written) for name, array in scratch.items()
            )
            self.backend.launch(
                Launch(
                    module=self.module,
                    entry=step.entry,
                    grid=grid,
                    block=self.tile.threads,
                    shared_bytes=shared_bytes(step.shared, self.bucket, self.tile),
                    params=params,
                    operands=operands + memory,
                )
            )
            written = True

    def _grid(self, step: Pass) -> tuple[int, int, int]:
        return grid_of(step.grid, self.sizes, self.tile)


def _plan(kernel: Kernel, backend: Backend, direction: str, sizes: Sizes, q: Array, tile: Tile | None) -> _Plan:
    bucket = head_dim_bucket(kernel, direction, sizes.head_dim, sizes.head_dim_v)
    if tile is None:
        tile = default_tile(kernel, direction, bucket, backend.arch)
    check_tile(kernel, direction, bucket, tile, backend.arch)
    return _Plan(
        backend=backend,
        direction=kernel.direction(direction),
        module=module_of(kernel, storage_dtype(q, "q"), bucket, tile),
        tile=tile,
        bucket=bucket,
        sizes=sizes,
    )


def _checked_sizes(kernel: Kernel, backend: Backend, q: Array, k: Array, v: Array, options: Options) -> Sizes:
    sizes = resolve_sizes(kernel, backend, q, k, v, options)
    check_options(sizes, q, options)
    return sizes


def _gradients(
    backend: Backend, q: Array, k: Array, v: Array, options: Options, given: Mapping[str, Array]
) -> dict[str, Array]:
    like = {"dq": q, "dk": k, "dv": v, "dbias": options.bias, "dsink": options.sink}
    wanted = {name: array for name, array in like.items() if array is not None}
    unknown = sorted(set(given) - set(wanted))
    if unknown:
        raise ValueError(f"grads: {', '.join(unknown)}, expected names out of {', '.join(wanted)}")
    return {
        name: _output(backend, name, given.get(name), tuple(array.shape), array.dtype) for name, array in wanted.items()
    }


def _output(backend: Backend, name: str, given: Array | None, shape: tuple[int, ...], dtype: Any) -> Array:
    if given is None:
        return backend.empty(shape, dtype)
    require_shape(name, given, shape)
    require_dtype(name, given, str(dtype))
    return given


def _workspaces(
    direction: Direction, backend: Backend, sizes: Sizes, given: Mapping[str, Array] | None
) -> dict[str, Array]:
    scratch = {}
    for name, shape in _scratch_shapes(direction, sizes).items():
        array = _output(backend, name, (given or {}).get(name), shape, np.dtype(np.float32))
        if not array.flags.c_contiguous:
            raise ValueError(f"workspace: {name} has strides {array.strides}, expected a contiguous array")
        scratch[name] = array
    return scratch


def _scratch_shapes(direction: Direction, sizes: Sizes) -> dict[str, tuple[int, ...]]:
    return {name: sizes.lse_shape if name == "delta" else sizes.pair_shape for name in direction.workspaces}


def _fill_scratch(params: Any, backend: Backend, scratch: Mapping[str, Array]) -> None:
    for name, array in scratch.items():
        params[name] = backend.address(array)


def _row_axes(sizes: Sizes) -> tuple[str, ...]:
    return ROW_AXES[1:] if sizes.packed else ROW_AXES


def _inputs(**arrays: Array | None) -> tuple[Operand, ...]:
    return tuple(
        Operand(name=name, array=array, writable=False, initialised=True)
        for name, array in arrays.items()
        if array is not None
    )


def _outputs(**arrays: Array) -> tuple[Operand, ...]:
    return tuple(Operand(name=name, array=array, writable=True, initialised=False) for name, array in arrays.items())
