"""Name -> Kernel: the kernels of this project with their declared facts."""

from __future__ import annotations

from dataclasses import replace

from kernels.kernel import (
    CUDA_DIR,
    Arithmetic,
    Capabilities,
    Direction,
    Grid,
    Kernel,
    Pass,
    Shared,
    Tile,
)

FEATURES = frozenset(
    {
        "causal", "causal_topleft", "window", "boolean", "block_sparse",
        "bias", "bias_minus_infinity", "alibi", "softcap", "sink", "dropout",
        "gqa", "ragged", "lengths", "dv",
    }
)  # fmt: skip
"""What both plain versions take."""

_ARITHMETIC = Arithmetic(
    accumulate="rne",
    accumulate_chunk=1,
    scores_dtype="fp32",
    dprobs_dtype="fp32",
    probs_dtype="fp32",
    probs_backward_dtype="fp32",
    dscores_dtype="fp32",
    probs_normalised=True,
    scale_on="scores",
    scale_roundings=2,
    bias_roundings=1,
    alibi_roundings=2,
    softcap_roundings=2,
    dropout_roundings=2,
    exponential="exp",
    # CUDA's expf and tanhf stay within 2 ulp and logf within 1 (CUDA C++ Programming Guide, "Mathematical Functions");
    # glibc's, which the CPU backend calls, stay within those.
    exp_ulp=2.0,
    log_ulp=1.0,
    tanh_ulp=2.0,
    online=False,
    argmax_exact=True,
    delta_from="out",
    lse_dtype="fp32",
    lse_log="natural",
    flushes_subnormals=False,
    order="ascending index, one owner a sum",
)

_PLAIN_TILE = Tile(q=1, k=1, threads=128)

TEXTBOOK = Kernel(
    name="cuda_textbook",
    summary="S, P, dP and dS as full matrices in device memory, one pass each",
    source=CUDA_DIR / "textbook.cu",
    forward=Direction(
        passes=(
            Pass(entry="forward_scores", grid=Grid.PAIRS),
            Pass(entry="forward_softmax", grid=Grid.QUERY_ROWS),
            Pass(entry="forward_values", grid=Grid.OUT_ELEMENTS),
        ),
        workspaces=("scores", "probs"),
        tiles={0: (_PLAIN_TILE,)},
    ),
    backward=Direction(
        passes=(
            Pass(entry="backward_scores", grid=Grid.PAIRS),
            Pass(entry="backward_probs", grid=Grid.PAIRS),
            Pass(entry="backward_delta", grid=Grid.QUERY_ROWS),
            Pass(entry="backward_dprobs", grid=Grid.PAIRS),
            Pass(entry="backward_dscores", grid=Grid.PAIRS),
            Pass(entry="backward_dq", grid=Grid.DQ_ELEMENTS),
            Pass(entry="backward_dk", grid=Grid.DK_ELEMENTS),
            Pass(entry="backward_dv", grid=Grid.DV_ELEMENTS),
            Pass(entry="backward_dbias", grid=Grid.BIAS_ELEMENTS, needs="bias"),
            Pass(entry="backward_sink", grid=Grid.HEADS, shared=Shared.THREADS, needs="sink"),
        ),
        workspaces=("delta", "scores", "probs", "dprobs", "dscores"),
        tiles={0: (_PLAIN_TILE,)},
    ),
    capabilities=Capabilities(
        dtypes=("fp32", "fp16", "bf16"),
        features=FEATURES,
        max_head_dim=None,
        backward=True,
        takes_dlse=True,
        deterministic=True,
        nan_behind_mask=True,
        any_strides=True,
    ),
    arithmetic=_ARITHMETIC,
)


def _tiles(*sizes: tuple[int, int, int]) -> tuple[Tile, ...]:
    return tuple(Tile(q=q, k=k, threads=threads) for q, k, threads in sizes)


TILED = Kernel(
    name="cuda_tiled",
    summary="tiles in shared memory, online softmax, P recomputed in the backward; fp32 FMA",
    source=CUDA_DIR / "tiled.cu",
    forward=Direction(
        passes=(Pass(entry="tiled_forward", grid=Grid.QUERY_TILES, shared=Shared.FORWARD),),
        workspaces=(),
        tiles={
            32: _tiles((64, 64, 256), (32, 32, 256), (16, 16, 128)),
            64: _tiles((64, 64, 256), (32, 64, 256), (32, 32, 256), (16, 16, 128)),
            128: _tiles((64, 32, 256), (32, 32, 256), (16, 16, 128)),
            256: _tiles((32, 32, 256), (32, 16, 256), (16, 16, 256), (16, 16, 128)),
        },
    ),
    backward=Direction(
        passes=(
            Pass(entry="backward_delta", grid=Grid.QUERY_ROWS),
            Pass(entry="tiled_dkdv", grid=Grid.KEY_TILES, shared=Shared.BACKWARD),
            Pass(entry="tiled_dq", grid=Grid.QUERY_TILES, shared=Shared.BACKWARD),
            Pass(entry="tiled_dbias", grid=Grid.BIAS_TILES, shared=Shared.BACKWARD_BIAS, needs="bias"),
            Pass(entry="backward_sink", grid=Grid.HEADS, shared=Shared.THREADS, needs="sink"),
        ),
        workspaces=("delta",),
        tiles={
            32: _tiles((64, 64, 256), (32, 32, 256), (16, 16, 128)),
            64: _tiles((64, 64, 256), (32, 32, 256), (16, 16, 128)),
            128: _tiles((32, 32, 256), (16, 16, 256), (16, 16, 128)),
            256: _tiles((32, 32, 256), (16, 16, 256), (16, 8, 64)),
        },
    ),
    capabilities=Capabilities(
        dtypes=("fp32", "fp16", "bf16"),
        features=FEATURES,
        max_head_dim=256,
        backward=True,
        takes_dlse=True,
        deterministic=True,
        nan_behind_mask=True,
        any_strides=True,
    ),
    arithmetic=replace(_ARITHMETIC, probs_normalised=False, online=True),
)

KERNELS: dict[str, Kernel] = {kernel.name: kernel for kernel in (TEXTBOOK, TILED)}


def kernel_named(name: str) -> Kernel:
    """The kernel of that name.

    Raises
    ------
    ValueError
        Unknown name; the message lists the known ones.
    """
    if name not in KERNELS:
        raise ValueError(f"kernel: {name!r}, expected one of {', '.join(KERNELS)}")
    return KERNELS[name]
