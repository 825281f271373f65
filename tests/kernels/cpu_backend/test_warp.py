"""Warp operations against a model written from the PTX ISA, and their misuse."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kernels.cpu_backend import Build, FaultKind, guarded_array
from tests.kernels.cpu_backend.launching import run_kernel, write_kernel

LANES = np.arange(32)
WIDTHS = [1, 2, 4, 8, 16, 32]


def shuffle_source(mode: str, operand: int, width: int) -> np.ndarray:
    """Lane that each lane reads (PTX ISA, shfl.sync): clamp and segment mask as CUDA's width sets them."""
    segment_mask = 32 - width
    first = LANES & segment_mask
    last = first | (31 & ~segment_mask)
    b = operand & 31
    if mode == "idx":
        return first | (b & ~segment_mask & 31)
    source = {"up": LANES - b, "down": LANES + b, "xor": LANES ^ b}[mode]
    inside = source >= first if mode == "up" else source <= last
    return np.where(inside, source, LANES)


SHUFFLES = """
int v = threadIdx.x * 10, t = threadIdx.x;
for (int i = 0; i < 6; ++i)
    for (int b = 0; b < 34; ++b) {
        int* o = out + ((i * 34 + b) * 4) * 32 + t;
        o[0] = __shfl_sync(~0u, v, b, 1 << i);
        o[32] = __shfl_up_sync(~0u, v, b, 1 << i);
        o[64] = __shfl_down_sync(~0u, v, b, 1 << i);
        o[96] = __shfl_xor_sync(~0u, v, b, 1 << i);
    }
"""


def test_shuffles_follow_ptx_for_every_width_and_operand(tmp_path: Path) -> None:
    out, buffer = guarded_array((6, 34, 4, 32), np.int32, name="out")
    assert run_kernel(write_kernel(tmp_path, SHUFFLES, "int* out"), buffer, build=Build.FAST).faults == ()
    expected = [
        [[shuffle_source(mode, b, width) * 10 for mode in ("idx", "up", "down", "xor")] for b in range(34)]
        for width in WIDTHS
    ]
    assert np.array_equal(out, expected)


def test_shuffle_from_a_lane_outside_of_the_mask_is_poison(tmp_path: Path) -> None:
    out, buffer = guarded_array((16,), np.float32, name="out")
    body = "if (threadIdx.x < 16) out[threadIdx.x] = __shfl_down_sync(0xffffu, 1.0f, 1);"
    assert run_kernel(write_kernel(tmp_path, body), buffer).faults == ()
    assert np.array_equal(np.isnan(out), np.arange(16) == 15)


VOTES = """
unsigned t = threadIdx.x;
unsigned* o = out + t * 9;
o[0] = __ballot_sync(~0u, t % 5 == 0);
o[1] = __any_sync(~0u, t == 40) + 2 * __any_sync(~0u, t == 4);
o[2] = __all_sync(~0u, t < 31) + 2 * __all_sync(~0u, t < 32);
o[3] = __match_any_sync(~0u, t / 8);
o[4] = __reduce_add_sync(~0u, t * 0x10000000u);
o[5] = __reduce_max_sync(~0u, (int)t - 40);
o[6] = __reduce_min_sync(~0u, t ^ 7u);
o[7] = __reduce_xor_sync(~0u, t | 32u);
int equal;
o[8] = __match_all_sync(~0u, 5, &equal) & (equal ? ~0u : 0u);
"""


def test_votes_matches_and_reductions(tmp_path: Path) -> None:
    out, buffer = guarded_array((32, 9), np.uint32, name="out")
    assert run_kernel(write_kernel(tmp_path, VOTES, "unsigned* out"), buffer).faults == ()
    ballot = sum(1 << lane for lane in range(0, 32, 5))
    total = sum(range(32)) * 0x10000000 % 2**32
    for lane in range(32):
        octet = 0xFF << (lane // 8 * 8)
        assert out[lane].tolist() == [ballot, 2, 2, octet, total, 2**32 - 9, 0, 0, 0xFFFFFFFF]


def test_partial_last_warp_takes_part_with_a_full_mask(tmp_path: Path) -> None:
    out, buffer = guarded_array((40,), np.int32, name="out")
    body = "out[threadIdx.x] = __popc(__ballot_sync(~0u, 1));"
    assert run_kernel(write_kernel(tmp_path, body, "int* out"), buffer, threads=40).faults == ()
    assert out.tolist() == [32] * 32 + [8] * 8


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        ("if (threadIdx.x < 16)\n__syncwarp();\nelse out[0] =\n__shfl_sync(~0u, 1.0f, 0);", {4, 6}),
        ("if (threadIdx.x == 7) return;\n__syncwarp();", {4}),
        ("__syncwarp(0xfffeu);", {3}),
        ("unsigned r[4];\nif (threadIdx.x < 9)\nldmatrix_x4(r, 0);\nelse\nldmatrix_x4(r, 0);", {5, 7}),
    ],
    ids=["different operations", "exited lane", "own lane not in the mask", "aligned operation from two places"],
)
def test_misused_warp_operation_is_a_divergence(body: str, lines: set[int], tmp_path: Path) -> None:
    _, buffer = guarded_array((1,), np.float32, name="out", fill=0.0)
    (fault,) = run_kernel(write_kernel(tmp_path, body), buffer, shared_bytes=512, build=Build.FAST).faults
    assert fault.kind is FaultKind.WARP_DIVERGENCE
    assert {fault.line, fault.other_line} - {None} == lines


def test_a_shuffle_does_not_order_memory(tmp_path: Path) -> None:
    _, buffer = guarded_array((32,), np.float32, name="out")
    body = """
    DYN_SMEM(raw);
    float* shared = (float*)raw;
    shared[threadIdx.x] = threadIdx.x;
    float sum = __shfl_xor_sync(~0u, 1.0f, 1);
    out[threadIdx.x] = sum + shared[threadIdx.x ^ 1];
    """
    (fault,) = run_kernel(write_kernel(tmp_path, body), buffer, shared_bytes=128).faults
    assert (fault.kind, fault.line, fault.other_line) == (FaultKind.RACE, 8, 6)


def test_lanes_of_disjoint_masks_synchronise_separately(tmp_path: Path) -> None:
    out, buffer = guarded_array((32,), np.float32, name="out")
    body = """
    unsigned t = threadIdx.x, mask = t < 16 ? 0xffffu : 0xffff0000u;
    for (int i = 0; i < (t < 16 ? 3 : 5); ++i)
        out[t] = __reduce_add_sync(mask, 1);
    """
    assert run_kernel(write_kernel(tmp_path, body), buffer).faults == ()
    assert (out == 16).all()
